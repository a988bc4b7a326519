//! Name filters with `*`, as lists of channels and clients take them.

/// Whether `name` passes `filter`. As the original has it: `*x*` contains (without respect to case), `*x` ends
/// with, `x*` starts with (both with respect to case), anything else is equality (without respect to case);
/// an empty filter and `*` let everything pass.
pub fn matches(filter: &str, name: &str) -> bool {
    match (filter.strip_prefix('*'), filter.strip_suffix('*')) {
        _ if filter.is_empty() || filter == "*" => true,
        (Some(rest), Some(_)) => {
            let wanted = &rest[..rest.len() - 1];
            name.to_lowercase().contains(&wanted.to_lowercase())
        }
        (Some(suffix), None) => name.ends_with(suffix),
        (None, Some(prefix)) => name.starts_with(prefix),
        (None, None) => name.to_lowercase() == filter.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_anything_on_their_side() {
        assert!(matches("*h-pu*", "CH-PUSH"));
        assert!(matches("ch*", "ch-push") && !matches("CH*", "ch-push"));
        assert!(matches("*push", "ch-push") && !matches("*PUSH", "ch-push"));
        assert!(matches("Ch-Push", "ch-push") && !matches("ch", "ch-push"));
        assert!(matches("", "x") && matches("*", "x") && matches("**", "x"));
    }
}
