//! The comparison of a damaged file with the files of other members.
//!
//! Files of all members are the same after the same entry. A file that differs from another member's can get its bytes from
//! there. If no other member has a different one, a copy would not help: the bytes were damaged before they were replicated, or
//! the other members have no files. They may wait for a copy of those of this one.

use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::input::{DamageScope, Input};
use crate::link::MemberStream;
use crate::operation::is_valid;
use crate::transport::{ConnectionKind, MemberCredentials, invalid, read_frame, write_frame};

/// Pause between two comparisons. Twice as long after each one for which no member with all files answered.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time until members that are not at the same entry are compared all the same.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the answer of a member, which reads its file.
const ANSWER_TIME: Duration = Duration::from_secs(30);
const PIECE_BYTES: usize = 1 << 20;

/// The state of a file after an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ComparedFile {
    /// Index of the entry.
    index: u64,
    /// `None`: there is no such file.
    digest: Option<[u8; 32]>,
}

/// The answer of a member that does not have all files.
const INCOMPLETE: &[u8] = &[];

/// Compares a file of this member with that of the members at these addresses. Waits until one of them has all files and answers,
/// or all answer that they do not.
pub(crate) async fn find_scope(
    name: &str,
    member: &Sender<Input>,
    others: &[String],
    credentials: &MemberCredentials,
) -> DamageScope {
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let (mut theirs, mut incomplete) = (Vec::new(), 0);
        for address in others {
            match tokio::time::timeout(ANSWER_TIME, ask(address, name, credentials)).await {
                Ok(Ok(Some(state))) => theirs.push(state),
                Ok(Ok(None)) => incomplete += 1,
                Ok(Err(_)) | Err(_) => {}
            }
        }
        if incomplete == others.len() {
            return DamageScope::AllMembers;
        }
        if theirs.is_empty() {
            if pause == PAUSE {
                tracing::warn!(
                    name,
                    "a file is damaged, and no other node with all files answers; waiting for one, to compare it"
                );
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
            continue;
        }
        match read_own(name, member).await {
            Ok(Some(own)) => {
                if let Some(scope) = compare(own, &theirs, begun.elapsed() > PATIENCE) {
                    return scope;
                }
            }
            // A disk that cannot read the file.
            Err(error) => {
                tracing::warn!(name, %error, "cannot read a file that is to be compared with other nodes");
                return DamageScope::Local;
            }
            // It gets a copy meanwhile.
            Ok(None) => return DamageScope::Local,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// `None`: not decided yet. `is_late`: states after different entries count, too.
fn compare(own: ComparedFile, theirs: &[ComparedFile], is_late: bool) -> Option<DamageScope> {
    let comparable: Vec<_> = theirs.iter().filter(|state| is_late || state.index == own.index).collect();
    if comparable.iter().any(|state| state.digest != own.digest) {
        return Some(DamageScope::Local);
    }
    (!comparable.is_empty()).then_some(DamageScope::AllMembers)
}

/// Asks a member for the state of its file. `None`: it does not have all files.
async fn ask(address: &str, name: &str, credentials: &MemberCredentials) -> io::Result<Option<ComparedFile>> {
    let (mut stream, _) = credentials.connect(address, ConnectionKind::Compare).await?;
    write_frame(&mut stream, &[name.as_bytes()]).await?;
    let answer = read_frame(&mut stream).await?;
    if *answer == *INCOMPLETE {
        return Ok(None);
    }
    let index = answer.first_chunk().ok_or_else(|| invalid("the state of a file is too short"))?;
    let digest = match answer.get(8..) {
        Some([]) => None,
        digest => Some(digest.and_then(|digest| digest.try_into().ok()).ok_or(io::ErrorKind::InvalidData)?),
    };
    Ok(Some(ComparedFile { index: u64::from_le_bytes(*index), digest }))
}

/// Answers [`ask`].
pub(crate) async fn tell_state(stream: &mut Box<dyn MemberStream>, member: &Sender<Input>) -> io::Result<()> {
    let name = read_frame(stream).await?;
    let name = str::from_utf8(&name).ok().filter(|name| is_valid(name));
    let name = name.ok_or_else(|| invalid("not a name of a file"))?;
    let Some(state) = read_own(name, member).await? else {
        return write_frame(stream, &[INCOMPLETE]).await;
    };
    let digest = state.digest.as_ref().map_or(&[][..], |digest| digest);
    write_frame(stream, &[&state.index.to_le_bytes(), digest]).await
}

/// `None`: this member does not have all files.
async fn read_own(name: &str, member: &Sender<Input>) -> io::Result<Option<ComparedFile>> {
    let (answer, opened) = oneshot::channel();
    let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
    member.send(Input::OpenFile(name.to_owned(), answer)).map_err(|_| ended())?;
    let Some(opened) = opened.await.map_err(|_| ended())?? else { return Ok(None) };
    let digest = match opened.file {
        Some(file) => {
            let reading = tokio::task::spawn_blocking(move || digest_of(file));
            Some(reading.await.map_err(io::Error::other)??)
        }
        None => None,
    };
    Ok(Some(ComparedFile { index: opened.index, digest }))
}

fn digest_of(mut file: File) -> io::Result<[u8; 32]> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&piece[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, digest: Option<u8>) -> ComparedFile {
        ComparedFile { index, digest: digest.map(|byte| [byte; 32]) }
    }

    #[tokio::test]
    async fn a_file_is_not_read_while_no_other_member_answers() {
        let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let others = [unused.local_addr().unwrap().to_string()];
        drop(unused);
        let (member, inputs) = std::sync::mpsc::channel();
        let credentials =
            MemberCredentials { cluster: "test".to_owned(), node: 1, secret: vec![1; 16], tls: None };
        let finding = find_scope("shard-0/a", &member, &others, &credentials);
        let found = tokio::time::timeout(Duration::from_secs(1), finding).await;
        assert!(found.is_err(), "{found:?}");
        assert_eq!(inputs.try_iter().count(), 0);
    }

    #[test]
    fn one_different_file_is_enough_to_copy() {
        let own = at(5, Some(1));
        assert_eq!(compare(own, &[at(5, Some(1)), at(5, Some(2))], false), Some(DamageScope::Local));
        assert_eq!(compare(own, &[at(5, None)], false), Some(DamageScope::Local));
        assert_eq!(compare(own, &[at(5, Some(1))], false), Some(DamageScope::AllMembers));
    }

    #[test]
    fn files_after_other_entries_are_compared_at_last() {
        let own = at(5, Some(1));
        assert_eq!(compare(own, &[at(4, Some(2))], false), None);
        assert_eq!(compare(own, &[at(4, Some(2))], true), Some(DamageScope::Local));
        assert_eq!(compare(own, &[], true), None);
    }
}
