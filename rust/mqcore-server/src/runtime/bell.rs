//! A channel from a thread to a task, which wakes the task as a socket would.
//!
//! A task that a thread wakes by itself goes through the runtime's common queue, and the worker that finds it there wakes a
//! second worker, so that this one looks for more. For a word that comes alone and is waited for, that is a detour: with two
//! processors the second worker takes the one that whoever gets the answer would run on. What a socket brings is run by the
//! worker that waited for it, and nobody else is woken.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};

/// The thread's side. Saying something to a task that has ended is fine, and without effect.
#[derive(Debug)]
pub(crate) struct Ringer<T> {
    words: mpsc::Sender<T>,
    awake: Arc<AtomicBool>,
    rope: rope::End,
}

/// The task's side.
#[derive(Debug)]
pub(crate) struct Bell<T> {
    words: mpsc::Receiver<T>,
    /// The first word, if the task saw it when it wanted to sleep.
    first: Option<T>,
    /// The task looks at `words` before it sleeps, so nobody has to ring: while it has other work a word costs no system call.
    awake: Arc<AtomicBool>,
    rope: rope::Start,
}

/// Makes both sides. To be called where the runtime is.
///
/// # Errors
/// If the system gives no pipe.
pub(crate) fn bell<T>() -> io::Result<(Ringer<T>, Bell<T>)> {
    let (sender, receiver) = mpsc::channel();
    let awake = Arc::new(AtomicBool::new(true));
    let (end, start) = rope::hang()?;
    let ringer = Ringer { words: sender, awake: Arc::clone(&awake), rope: end };
    Ok((ringer, Bell { words: receiver, first: None, awake, rope: start }))
}

impl<T> Ringer<T> {
    /// Says something. Never blocks.
    pub(crate) fn say(&self, word: T) {
        let _ = self.words.send(word);
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.rope.pull();
        }
    }
}

impl<T> Bell<T> {
    /// Ready when something was said and not heard yet; rarely, when it was heard already.
    pub(crate) fn poll_rung(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Before looking: what is said from now on rings.
        self.awake.swap(false, Ordering::AcqRel);
        let pulled = self.rope.poll_pulled(context);
        if self.first.is_none() {
            self.first = self.words.try_recv().ok();
        }
        if self.first.is_some() { Poll::Ready(()) } else { pulled }
    }

    /// What was said and not heard yet, in its order. Until [`Bell::poll_rung`] is called again the task is taken to be awake.
    pub(crate) fn words(&mut self) -> impl Iterator<Item = T> {
        self.awake.store(true, Ordering::Relaxed);
        self.first.take().into_iter().chain(self.words.try_iter())
    }
}

#[cfg(unix)]
mod rope {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use tokio::io::{AsyncRead, ReadBuf};
    use tokio::net::unix::pipe;

    #[derive(Debug)]
    pub(super) struct End {
        pipe: File,
        /// So that somebody can read as long as somebody writes: a pipe that nobody can read may end the process.
        _start: OwnedFd,
    }

    /// `None` once nobody pulls any more.
    #[derive(Debug)]
    pub(super) struct Start(Option<pipe::Receiver>);

    pub(super) fn hang() -> io::Result<(End, Start)> {
        let (sender, receiver) = pipe::pipe()?;
        let receiver = receiver.into_nonblocking_fd()?;
        let end = End { pipe: sender.into_nonblocking_fd()?.into(), _start: receiver.try_clone()? };
        Ok((end, Start(Some(pipe::Receiver::from_owned_fd(receiver)?))))
    }

    impl End {
        pub(super) fn pull(&self) {
            // If it is full, what is in it wakes the task just as well.
            let _ = (&self.pipe).write_all(&[0]);
        }
    }

    impl Start {
        pub(super) fn poll_pulled(&mut self, context: &mut Context<'_>) -> Poll<()> {
            let Some(pipe) = &mut self.0 else { return Poll::Pending };
            // What it holds beyond that wakes the task once more, which costs a look.
            let mut octets = [0; 64];
            let mut buffer = ReadBuf::new(&mut octets);
            let read = ready!(Pin::new(pipe).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                self.0 = None;
                return Poll::Pending;
            }
            Poll::Ready(())
        }
    }
}

/// Without pipes the runtime's own way has to do.
#[cfg(not(unix))]
mod rope {
    use std::io;
    use std::task::{Context, Poll, ready};

    use tokio::sync::mpsc;

    #[derive(Debug)]
    pub(super) struct End(mpsc::UnboundedSender<()>);

    #[derive(Debug)]
    pub(super) struct Start(mpsc::UnboundedReceiver<()>);

    pub(super) fn hang() -> io::Result<(End, Start)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        Ok((End(sender), Start(receiver)))
    }

    impl End {
        pub(super) fn pull(&self) {
            let _ = self.0.send(());
        }
    }

    impl Start {
        pub(super) fn poll_pulled(&mut self, context: &mut Context<'_>) -> Poll<()> {
            match ready!(self.0.poll_recv(context)) {
                Some(()) => Poll::Ready(()),
                None => Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn every_word_is_heard_in_order_however_the_task_and_the_thread_meet() {
        const WORDS: u32 = 20_000;
        let (ringer, mut bell) = bell().expect("there are pipes");
        let thread = std::thread::spawn(move || (0..WORDS).for_each(|word| ringer.say(word)));
        let mut heard = Vec::new();
        let all = async {
            while heard.len() < WORDS as usize {
                poll_fn(|context| bell.poll_rung(context)).await;
                heard.extend(bell.words());
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("no word is left behind unheard");
        thread.join().expect("it only speaks");
        assert!(heard.into_iter().eq(0..WORDS));
    }

    #[tokio::test]
    async fn a_bell_that_nobody_rings_any_more_is_silent_after_its_last_words() {
        let (ringer, mut bell) = bell().expect("there are pipes");
        ringer.say(1);
        drop(ringer);
        poll_fn(|context| bell.poll_rung(context)).await;
        assert!(bell.words().eq([1]));
        let mut woken = 0;
        let again = async {
            loop {
                poll_fn(|context| bell.poll_rung(context)).await;
                woken += 1;
            }
        };
        let silent = tokio::time::timeout(Duration::from_millis(50), again).await;
        assert!(
            silent.is_err() && woken <= 1,
            "a task that is woken for nothing, {woken} times, fills a processor"
        );
    }

    #[tokio::test]
    async fn words_to_a_task_that_has_ended_harm_nobody() {
        let (ringer, bell) = bell().expect("there are pipes");
        drop(bell);
        (0..100_000).for_each(|word| ringer.say(word));
    }
}
