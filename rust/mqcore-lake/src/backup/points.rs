//! Restore points in the store: listed, read and found by time.

use crate::backup::point::RestorePoint;
use crate::error::LakeError;
use crate::store::Store;

const DIRECTORY: &str = "points/";
const SUFFIX: &str = ".json.zst";
/// How far the clock of a broker may be ahead of that of the store before the store is believed.
const AHEAD_MAX_MS: u64 = 5 * 60 * 1000;

/// Returns the name of a restore point's object.
#[must_use]
pub fn name(number: u64) -> String {
    format!("{DIRECTORY}{number:010}{SUFFIX}")
}

/// Lists the numbers of all restore points, ascending.
///
/// # Errors
/// [`LakeError::Store`].
pub async fn numbers(store: &Store) -> Result<Vec<u64>, LakeError> {
    let found = store.list(DIRECTORY).await?;
    let number = |name: &str| name.strip_prefix(DIRECTORY)?.strip_suffix(SUFFIX)?.parse().ok();
    let mut numbers: Vec<u64> = found.iter().filter_map(|found| number(&found.name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads a restore point; `None`: it has expired. No moment is later than the upload of its restore point, so a time that is
/// much later is that of a wrong clock, and the time of the upload replaces it.
///
/// # Errors
/// [`LakeError::Store`] and [`LakeError::RestorePoint`].
pub async fn get(store: &Store, number: u64) -> Result<Option<RestorePoint>, LakeError> {
    let Some((content, stored_ms)) = store.get_with_time(&name(number)).await? else { return Ok(None) };
    let mut point = RestorePoint::decode(number, &content)?;
    if point.created_ms > stored_ms.saturating_add(AHEAD_MAX_MS) {
        point.created_ms = stored_ms;
    }
    Ok(Some(point))
}

/// Reads a restore point as [`get`] does, which must exist.
///
/// # Errors
/// [`LakeError::Store`] and [`LakeError::RestorePoint`].
pub async fn read(store: &Store, number: u64) -> Result<RestorePoint, LakeError> {
    let expired = || LakeError::RestorePoint { number, why: "it has expired meanwhile".to_owned() };
    get(store, number).await?.ok_or_else(expired)
}

/// Reads the newest restore point; `None`: there is none.
///
/// # Errors
/// [`LakeError::Store`] and [`LakeError::RestorePoint`].
pub async fn newest(store: &Store) -> Result<Option<RestorePoint>, LakeError> {
    match numbers(store).await?.last() {
        Some(&number) => read(store, number).await.map(Some),
        None => Ok(None),
    }
}

/// Finds the newest of some restore points whose moment is `time_ms` or before. `numbers` must ascend.
///
/// # Errors
/// [`LakeError::Store`] and [`LakeError::RestorePoint`].
pub async fn find(store: &Store, numbers: &[u64], time_ms: u64) -> Result<Option<RestorePoint>, LakeError> {
    // Times ascend with numbers. Everything before `low` is early enough, and everything from `high` on is too late.
    let (mut low, mut high) = (0, numbers.len());
    let mut found = None;
    while low < high {
        let middle = low + (high - low) / 2;
        match get(store, numbers[middle]).await? {
            Some(point) if point.created_ms > time_ms => high = middle,
            // The oldest ones expire first.
            point => {
                found = point;
                low = middle + 1;
            }
        }
    }
    Ok(found)
}
