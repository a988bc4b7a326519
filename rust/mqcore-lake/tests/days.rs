//! Days of rounds with the default settings, in simulated time: how many objects, requests and bytes it takes.

use mqcore_lake::lake::{Lake, LakeOptions, ShardInput};
use mqcore_testkit::by_depth;
use object_store::ObjectStore as _;
use tokio::runtime::Builder;

use futures_util::TryStreamExt as _;

use crate::reader::{manifest, place};
use crate::source::{Source, now_ms};
use crate::unreliable::Unreliable;

const DAY_MS: u64 = 86_400_000;
/// Time between rounds, the default of `archive_interval`.
const ROUND_MS: u64 = 300_000;
/// Time between checks for files and snapshots that are too old.
const EXPIRY_MS: u64 = 60_000;
/// Events of a shard in each round.
const NOTES: u64 = 100;

#[test]
fn days_of_rounds_leave_few_objects_and_write_each_row_a_few_times() {
    let days = by_depth(1, 7);
    let objects = Unreliable::new();
    let store = place(objects.clone());
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let mut sources = [Source::new(70), Source::new(71)];
    let begin = now_ms();
    let mut now = begin;
    let options = LakeOptions { journals: vec![70, 71], is_new: true, ..LakeOptions::default() };
    let mut metadata_max = 0;
    let mut lake = runtime.block_on(Lake::open(store.clone(), options, None, now)).expect("a healthy store");
    while now < begin + days * DAY_MS {
        for source in &mut sources {
            for note in 0..NOTES {
                source.note(now + note * ROUND_MS / NOTES);
            }
            source.seal();
        }
        now += ROUND_MS;
        let inventories = sources.each_ref().map(|source| source.journal.sealed_notes());
        let inputs: Vec<_> = (0u32..)
            .zip(sources.iter().zip(&inventories))
            .map(|(shard, (source, inventory))| ShardInput {
                shard,
                journal: &source.disk,
                inventory,
                start: 0,
            })
            .collect();
        let before = objects.served();
        let round = async {
            lake.round(&inputs, now, &|| false).await?;
            let own = objects.served().put_bytes - before.put_bytes;
            while lake.compact(now, &|| false).await?.is_some() {}
            for _ in 0..ROUND_MS / EXPIRY_MS {
                lake.expire(now).await?;
            }
            Ok::<_, mqcore_lake::error::LakeError>(own)
        };
        metadata_max = metadata_max.max(runtime.block_on(round).expect("a healthy store"));
        for source in &mut sources {
            let archived = source.journal.sealed_notes().next;
            source.journal.release_notes(archived);
        }
    }
    let found: Vec<_> = runtime.block_on(objects.list(None).try_collect()).expect("memory");
    let bytes = |part: &str| -> (usize, u64) {
        let sizes: Vec<u64> =
            found.iter().filter(|meta| meta.location.as_ref().contains(part)).map(|meta| meta.size).collect();
        (sizes.len(), sizes.iter().sum())
    };
    let (data, data_bytes) = bytes("/data/");
    let (metadata, metadata_bytes) = bytes("/metadata/");
    let served = objects.served();
    let rows: u64 = manifest(&store).files.iter().map(|file| file.rows).sum();
    eprintln!(
        "{days} days, {} rounds, {rows} rows: {data} data files with {data_bytes} bytes, {metadata} metadata files with \
         {metadata_bytes} bytes; {} PUT requests with {} bytes, {} GET requests with {} bytes; a round uploads at most \
         {metadata_max} bytes",
        days * DAY_MS / ROUND_MS,
        served.puts,
        served.put_bytes,
        served.gets,
        served.got_bytes
    );
    assert_eq!(rows, 2 * NOTES * days * DAY_MS / ROUND_MS);
    let live = manifest(&store).files.len() as u64;
    // A finished day has one file for each shard; the current day has a few.
    assert!(live <= 2 * (days + 1) + 30, "{live} files are in the table");
}
