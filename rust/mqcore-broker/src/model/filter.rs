//! Name filters with `*`, for lists of channels, clients and routers.

/// Whether `name` passes `filter`, by the rules of the original server. `*x*`: contains, ignoring case.
/// `*x`: ends with, respecting case. `x*`: starts with, respecting case. Anything else: equal, ignoring
/// case. An empty filter and `*` match everything.
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
