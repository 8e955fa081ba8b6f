//! The socket between the two programs of a hand-over.
//!
//! Owns sending and receiving of whole messages, each within a time limit. Does not own the order of messages.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::{LINE_BYTES_MAX, Message, MessageError};

/// How long the other program may take to make room for a message.
const SEND_PATIENCE: Duration = Duration::from_secs(10);
/// Shortest time limit of a read: the kernel takes 0 for no limit.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

/// Why no further message comes or goes.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other program has ended, or has closed the socket.
    #[error("the other program of the hand-over has gone away")]
    Closed,
    /// The line that came is no message.
    #[error(transparent)]
    Message(#[from] NoMessage),
    /// The socket does not work.
    #[error("the socket of the hand-over failed")]
    Socket(#[source] io::Error),
}

/// Why a line is no message.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NoMessage(MessageError);

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    /// Bytes received behind the last whole line.
    pending: Vec<u8>,
}

impl Link {
    /// Both ends of a new socket, the second one for another process.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, other) = UnixStream::pair()?;
        Ok((Self::new(own)?, other.into()))
    }

    /// The end that is `stream`.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(SEND_PATIENCE))?;
        Ok(Self { stream, pending: Vec::new() })
    }

    /// Another handle of the same end, for sending.
    pub fn sender(&self) -> io::Result<Self> {
        Self::new(self.stream.try_clone()?)
    }

    pub fn send(&self, message: &Message) -> Result<(), LinkError> {
        (&self.stream).write_all(&message.to_line()).map_err(closed)
    }

    /// The next message; `None` when none comes within `patience`.
    pub fn receive(&mut self, patience: Duration) -> Result<Option<Message>, LinkError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(Some(Message::parse(&line).map_err(NoMessage)?));
            }
            if self.pending.len() >= LINE_BYTES_MAX {
                return Err(NoMessage(MessageError::TooLong).into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(PATIENCE_MIN))).map_err(LinkError::Socket)?;
            let mut bytes = [0; 4096];
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => self.pending.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(closed(error)),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn closed(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LinkError::Closed,
        _ => LinkError::Socket(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn pair() -> (Link, UnixStream) {
        let (link, other) = Link::pair().unwrap();
        (link, UnixStream::from(other))
    }

    #[test]
    fn messages_come_one_by_one_however_the_bytes_are_cut() {
        let (mut link, mut other) = pair();
        let bytes = [Message::Alive.to_line(), Message::Ready.to_line(), b"{\"say\"".to_vec()].concat();
        other.write_all(&bytes[..5]).unwrap();
        assert!(link.receive(Duration::ZERO).unwrap().is_none());
        other.write_all(&bytes[5..]).unwrap();
        assert_eq!(link.receive(SOON).unwrap(), Some(Message::Alive));
        assert_eq!(link.receive(SOON).unwrap(), Some(Message::Ready));
        assert!(link.receive(Duration::ZERO).unwrap().is_none(), "half a line is no message yet");
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory_and_is_refused() {
        let (mut link, mut other) = pair();
        let writing = std::thread::spawn(move || {
            // Ends with an error when the link is dropped.
            while other.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let refused = link.receive(SOON).unwrap_err();
        assert!(refused.to_string().contains("longer than"), "{refused}");
        assert!(link.pending.len() < 2 * LINE_BYTES_MAX);
        drop(link);
        writing.join().unwrap();
    }

    #[test]
    fn the_end_of_the_other_program_is_told_from_silence() {
        let (mut link, other) = pair();
        assert!(link.receive(Duration::from_millis(5)).unwrap().is_none());
        drop(other);
        assert!(matches!(link.receive(SOON), Err(LinkError::Closed)));
        assert!(matches!(link.send(&Message::Alive), Err(LinkError::Closed)));
    }
}
