//! Random bits and parts of a journal changed: whatever is lost or changed, the report names it.

use mqcore_testkit::{Random, seeds};

use crate::damage::{Files, check, is_padding, open, sample, segments};

fn any_segment(files: &Files, random: &mut Random) -> String {
    let names: Vec<_> = segments(files).map(|(name, _)| name.clone()).collect();
    names[random.index(names.len())].clone()
}

#[test]
fn one_changed_bit_anywhere_is_detected() {
    let sample = sample(true);
    let names: Vec<_> = sample.files.keys().cloned().collect();
    for seed in seeds(2_000, 200_000) {
        let mut random = Random::new(seed);
        let name = &names[random.index(names.len())];
        let mut files = sample.files.clone();
        let bytes = files.get_mut(name).unwrap();
        let (at, bit) = (random.index(bytes.len()), random.index(8));
        bytes[at] ^= 1 << bit;
        let what = format!("seed {seed}: bit {bit} of byte {at} of {name}");
        let used = bytes.len() - bytes.iter().rev().take_while(|&&byte| byte == 0).count();
        let (_, world, report) = open(files.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&sample, &files, &world, &report, &what);
        if name.ends_with(".segment") && at < used && !is_padding(at) {
            assert!(report.is_alarming() || report.torn.len() == 1, "{what}: not noticed");
        }
    }
}

#[test]
fn random_parts_copied_zeroed_and_swapped_are_found() {
    let sample = sample(true);
    for seed in seeds(500, 10_000) {
        let mut random = Random::new(seed);
        let mut files = sample.files.clone();
        let mut what = format!("seed {seed}");
        for _ in 0..=random.index(2) {
            let (from, to) = (any_segment(&files, &mut random), any_segment(&files, &mut random));
            let source = files[&from].clone();
            let unit = [1, 512, 4096][random.index(3)];
            let length = (1 + random.index(8)) * unit;
            let place = |random: &mut Random, bytes: usize| random.index(bytes / unit) * unit;
            let (at, onto) = (place(&mut random, source.len()), place(&mut random, files[&to].len()));
            let length = length.min(source.len() - at).min(files[&to].len() - onto);
            let how = random.index(3);
            let part = if how == 0 { vec![0; length] } else { source[at..at + length].to_vec() };
            let replaced = files[&to][onto..onto + length].to_vec();
            files.get_mut(&to).unwrap()[onto..onto + length].copy_from_slice(&part);
            if how == 2 {
                files.get_mut(&from).unwrap()[at..at + length].copy_from_slice(&replaced);
            }
            what.push_str(&format!("; {how}: {length} bytes of {from} at {at} to {to} at {onto}"));
        }
        let (_, world, report) = open(files.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&sample, &files, &world, &report, &what);
    }
}

/// Without the ends of segments, an empty last segment would look like one that was never used.
#[test]
fn the_zeroed_last_segment_of_a_closed_journal_is_missed() {
    let sample = sample(true);
    let (name, _) = segments(&sample.files).last().unwrap();
    let mut files = sample.files.clone();
    files.get_mut(name).unwrap()[8192..].fill(0);
    let (_, world, report) = open(files.clone()).unwrap();
    assert!(report.is_alarming(), "{report}");
    check(&sample, &files, &world, &report, name);
}
