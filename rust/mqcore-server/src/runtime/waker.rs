//! A channel from a thread to a task that wakes the task through a pipe, as a socket would.
//!
//! When a plain thread wakes a task, the runtime puts the task into its common queue, and the worker that finds it
//! there wakes a second worker to look for more. For a single message with a waiting receiver, that is a detour: with
//! two processors, the second worker takes the one on which the receiver would run. A pipe avoids it: the worker that
//! waits for the pipe runs the task, and no other worker wakes up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};

/// The thread's side. Sending to a task that has ended has no effect.
#[derive(Debug)]
pub(crate) struct WakeSender<T> {
    values: mpsc::Sender<T>,
    awake: Arc<AtomicBool>,
    signal: pipe_signal::Notifier,
}

/// The task's side.
#[derive(Debug)]
pub(crate) struct WakeReceiver<T> {
    values: mpsc::Receiver<T>,
    /// The first value, if the task found it when it was about to sleep.
    first: Option<T>,
    /// True while the task runs. It looks at `values` before it sleeps, so a sender then needs no system call.
    awake: Arc<AtomicBool>,
    signal: pipe_signal::Listener,
}

/// Creates both sides. Must be called inside the runtime.
///
/// # Errors
/// If the system cannot create a pipe.
pub(crate) fn wake_channel<T>() -> io::Result<(WakeSender<T>, WakeReceiver<T>)> {
    let (sender, receiver) = mpsc::channel();
    let awake = Arc::new(AtomicBool::new(true));
    let (end, start) = pipe_signal::pair()?;
    let sender = WakeSender { values: sender, awake: Arc::clone(&awake), signal: end };
    Ok((sender, WakeReceiver { values: receiver, first: None, awake, signal: start }))
}

impl<T> WakeSender<T> {
    /// Sends a value, and wakes the task if it sleeps. Never blocks.
    pub(crate) fn send(&self, value: T) {
        let _ = self.values.send(value);
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.signal.notify();
        }
    }
}

impl<T> WakeReceiver<T> {
    /// Ready when a value is waiting; rarely also when it has been taken already.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Before looking: every value sent from now on wakes the task.
        self.awake.swap(false, Ordering::AcqRel);
        let pulled = self.signal.poll_notified(context);
        if self.first.is_none() {
            self.first = self.values.try_recv().ok();
        }
        if self.first.is_some() { Poll::Ready(()) } else { pulled }
    }

    /// Takes all waiting values in order. Senders consider the task awake until [`WakeReceiver::poll_ready`] is called again.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.awake.store(true, Ordering::Relaxed);
        self.first.take().into_iter().chain(self.values.try_iter())
    }
}

#[cfg(unix)]
mod pipe_signal {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use tokio::io::{AsyncRead, ReadBuf};
    use tokio::net::unix::pipe;

    #[derive(Debug)]
    pub(super) struct Notifier {
        pipe: File,
        /// Keeps the reading end open as long as the writing end: writing to a pipe without a reader may end the process.
        _start: OwnedFd,
    }

    /// `None` once the writing end is closed.
    #[derive(Debug)]
    pub(super) struct Listener(Option<pipe::Receiver>);

    pub(super) fn pair() -> io::Result<(Notifier, Listener)> {
        let (sender, receiver) = pipe::pipe()?;
        let receiver = receiver.into_nonblocking_fd()?;
        let end = Notifier { pipe: sender.into_nonblocking_fd()?.into(), _start: receiver.try_clone()? };
        Ok((end, Listener(Some(pipe::Receiver::from_owned_fd(receiver)?))))
    }

    impl Notifier {
        pub(super) fn notify(&self) {
            // If the pipe is full, what it holds wakes the task as well.
            let _ = (&self.pipe).write_all(&[0]);
        }
    }

    impl Listener {
        pub(super) fn poll_notified(&mut self, context: &mut Context<'_>) -> Poll<()> {
            let Some(pipe) = &mut self.0 else { return Poll::Pending };
            // Further bytes in the pipe wake the task once more, which costs one look.
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(pipe).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                self.0 = None;
                return Poll::Pending;
            }
            Poll::Ready(())
        }
    }
}

/// Without pipes, the runtime's own channel wakes the task.
#[cfg(not(unix))]
mod pipe_signal {
    use std::io;
    use std::task::{Context, Poll, ready};

    use tokio::sync::mpsc;

    #[derive(Debug)]
    pub(super) struct Notifier(mpsc::UnboundedSender<()>);

    #[derive(Debug)]
    pub(super) struct Listener(mpsc::UnboundedReceiver<()>);

    pub(super) fn pair() -> io::Result<(Notifier, Listener)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        Ok((Notifier(sender), Listener(receiver)))
    }

    impl Notifier {
        pub(super) fn notify(&self) {
            let _ = self.0.send(());
        }
    }

    impl Listener {
        pub(super) fn poll_notified(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
    async fn every_value_arrives_in_order_however_the_task_and_the_thread_interleave() {
        const VALUES: u32 = 20_000;
        let (sender, mut receiver) = wake_channel().expect("the system has pipes");
        let thread = std::thread::spawn(move || (0..VALUES).for_each(|value| sender.send(value)));
        let mut received = Vec::new();
        let all = async {
            while received.len() < VALUES as usize {
                poll_fn(|context| receiver.poll_ready(context)).await;
                received.extend(receiver.drain());
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("no value is left behind");
        thread.join().expect("the thread only sends");
        assert!(received.into_iter().eq(0..VALUES));
    }

    #[tokio::test]
    async fn a_receiver_without_a_sender_stays_pending_after_its_last_values() {
        let (sender, mut receiver) = wake_channel().expect("the system has pipes");
        sender.send(1);
        drop(sender);
        poll_fn(|context| receiver.poll_ready(context)).await;
        assert!(receiver.drain().eq([1]));
        let mut woken = 0;
        let again = async {
            loop {
                poll_fn(|context| receiver.poll_ready(context)).await;
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
    async fn sending_to_a_task_that_has_ended_has_no_effect() {
        let (sender, receiver) = wake_channel().expect("the system has pipes");
        drop(receiver);
        (0..100_000).for_each(|value| sender.send(value));
    }
}
