//! Event masks: `user.*.connected`.

/// Whether `event` fits `mask`. `*` stands for any run of octets that are not dots, an empty one too; everything else
/// stands for itself. Only events with a dot have a chance.
pub fn mask_matches(mask: &[u8], event: &[u8]) -> bool {
    if !event.contains(&b'.') {
        return false;
    }
    let mut masks = mask.split(|octet| *octet == b'.');
    let mut parts = event.split(|octet| *octet == b'.');
    loop {
        match (masks.next(), parts.next()) {
            (None, None) => return true,
            (Some(mask), Some(part)) if part_matches(mask, part) => {}
            _ => return false,
        }
    }
}

/// One part between dots. Takes the shortest run for each star and, where that fails, lengthens the last one only:
/// so a mask full of stars costs the product of both lengths at most.
fn part_matches(mask: &[u8], part: &[u8]) -> bool {
    let (mut m, mut p) = (0, 0);
    let mut star = None;
    while p < part.len() {
        if m < mask.len() && mask[m] == b'*' {
            star = Some((m, p));
            m += 1;
        } else if m < mask.len() && mask[m] == part[p] {
            m += 1;
            p += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            m = at + 1;
            p = from + 1;
        } else {
            return false;
        }
    }
    mask[m..].iter().all(|octet| *octet == b'*')
}

#[cfg(test)]
mod tests {
    use super::mask_matches;

    #[test]
    fn a_star_stands_for_any_run_without_a_dot() {
        for (mask, event) in [
            ("*.updated", "user.updated"),
            ("document.*", "document.created"),
            ("user.*.connected", "user.57e82b3931d9d614f0247ac7.connected"),
            ("*.*.deleted", "category.subcategory.deleted"),
            ("x.*.y", "x..y"),
            ("*.1*3.u", "e3.123.u"),
            ("a.b", "a.b"),
            ("a*b*.c", "aXbYbZ.c"),
        ] {
            assert!(mask_matches(mask.as_bytes(), event.as_bytes()), "{mask} takes {event}");
        }
    }

    #[test]
    fn a_mask_takes_nothing_else() {
        for (mask, event) in [
            ("e3.*", "e3.123.c"),
            ("*", "e1"),
            ("*", "a.b"),
            ("e1", "e1"),
            ("a.b", "aXb"),
            ("a.b", "ab.c"),
            ("*.updated", "user.updated.twice"),
            ("a*b.c", "aXbY.c"),
        ] {
            assert!(!mask_matches(mask.as_bytes(), event.as_bytes()), "{mask} does not take {event}");
        }
    }
}
