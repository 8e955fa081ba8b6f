//! The bearer token: reading the token file, reading the file again, comparing.
//!
//! Owns the token for requests over TCP. Does not own the rule which requests need the token (`guard`). Invariants: a
//! comparison takes the same time wherever the first difference is; the token is never logged; a token that was removed from
//! the file is refused a second later; the file that is judged is the one that is read, and a pipe keeps
//! nobody waiting; one thread at a time reads the file, however many requests need the token.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use subtle::ConstantTimeEq;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::observe::chain;
use crate::observe::troubles::{Part, Troubles};

/// Shortest token: a shorter one could be guessed.
const TOKEN_CHARS_MIN: usize = 16;
/// Most bytes read from a token file.
const FILE_BYTES_MAX: u64 = 4096;
/// Permissions that the file must not give to group and others.
const MODE_OF_OTHERS: u32 = 0o077;
/// A token is used for so long before the file is read again.
const REREAD_AFTER: Duration = Duration::from_secs(1);
/// How long a request waits for a file system that does not answer. The request is refused then.
const PATIENCE: Duration = Duration::from_secs(5);

/// The token of requests over TCP.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a token file was refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file could not be read.
    #[error("cannot read the token file {path}: `[api] token_file` of the daemon and `--token-file` name it")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The path names a directory, a device or a pipe.
    #[error("the token file {path} is not a regular file")]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Group or others have permissions on the file.
    #[error(
        "the token file {path} has mode {mode:04o}, so that others than its owner may use it: \
         `chmod 600 {path}`, and make a new token if others may have read this one"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
    /// The first line of the file is not a token.
    #[error(
        "the first line of the token file {path} is not a token: use {TOKEN_CHARS_MIN} or more printable characters \
         without spaces, such as the output of `openssl rand -hex 32`"
    )]
    NotAToken {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// Reads the token from the first line of `path`. Only the owner of the file may have permissions on the file.
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        let read = |source| TokenError::Read { path: path.into(), source };
        // Without O_NONBLOCK, opening a pipe would wait for a writer.
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        if !metadata.is_file() {
            return Err(TokenError::NotAFile { path: path.into() });
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & MODE_OF_OTHERS != 0 {
            return Err(TokenError::Exposed { path: path.into(), mode });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(read)?;
        let token = text.lines().next().unwrap_or_default().trim();
        if token.len() < TOKEN_CHARS_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotAToken { path: path.into() });
        }
        Ok(Self(token.into()))
    }

    /// The value of the header `Authorization` with the token.
    pub fn header_value(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether `header` carries this token.
    fn is_carried_by(&self, header: &[u8]) -> bool {
        let Some((scheme, given)) = header.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

/// A token file that may change while the daemon runs.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    /// Reads the file. Tests replace this function.
    load: fn(&Path) -> Result<Token, TokenError>,
    /// How long a request waits for the file.
    patience: Duration,
    troubles: Arc<Troubles>,
    known: Mutex<KnownToken>,
}

#[derive(Debug, Default)]
struct KnownToken {
    /// `None` while the file is refused or cannot be read in time: then no request is authorized.
    token: Option<Token>,
    read: Option<Instant>,
    reading: Option<JoinHandle<Result<Token, TokenError>>>,
    /// Whether the read under way takes longer than requests wait.
    is_late: bool,
}

impl TokenFile {
    /// The token in the file at `path`, which is read when somebody needs it.
    pub fn new(path: &Path, troubles: Arc<Troubles>) -> Self {
        let known = Mutex::default();
        Self { path: path.into(), load: Token::load, patience: PATIENCE, troubles, known }
    }

    /// Whether `header` carries the token. The file is read at most once a second, by one thread at a time.
    pub(super) async fn is_carried_by(&self, header: &[u8]) -> bool {
        // Requests that come during a read wait for its end here.
        let mut known = self.known.lock().await;
        if known.reading.is_some() || known.read.is_none_or(|read| read.elapsed() >= REREAD_AFTER) {
            self.read_again(&mut known).await;
        }
        known.token.as_ref().is_some_and(|token| token.is_carried_by(header))
    }

    /// Reads the file until it has a token.
    pub(super) async fn read(&self) {
        loop {
            let _ = self.is_carried_by(b"").await;
            if self.known.lock().await.token.is_some() {
                return;
            }
            tokio::time::sleep(REREAD_AFTER).await;
        }
    }

    async fn read_again(&self, known: &mut KnownToken) {
        let (path, load) = (self.path.clone(), self.load);
        // The file may be on a file system that does not answer, so a thread of its own reads the file.
        let reading = known.reading.get_or_insert_with(|| tokio::task::spawn_blocking(move || load(&path)));
        // One request waits for a read that is late; the others only look whether it has ended.
        let patience = if known.is_late { Duration::ZERO } else { self.patience };
        let path = self.path.display();
        let Ok(loaded) = timeout(patience, reading).await else {
            self.troubles.set(Part::Token, Some(format!("the file system of {path} does not answer")));
            (known.is_late, known.token) = (true, None);
            return;
        };
        (known.read, known.reading, known.is_late) = (Some(Instant::now()), None, false);
        let before = known.token.take();
        match loaded {
            Ok(Ok(token)) => {
                if before.is_some_and(|before| before != token) {
                    tracing::info!(%path, "the token file has another token, which holds from now on");
                }
                known.token = Some(token);
                self.troubles.set(Part::Token, None);
            }
            Ok(Err(error)) => self.troubles.set(Part::Token, Some(chain(&error))),
            // The daemon stops.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Writes a file with permissions for the owner only.
    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }

    #[test]
    fn only_the_whole_token_is_taken() {
        let token = Token("0123456789abcdef".into());
        assert!(token.is_carried_by(b"Bearer 0123456789abcdef"));
        assert!(token.is_carried_by(b"bearer 0123456789abcdef"));
        for header in
            ["", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdeF", "Basic 0123456789abcdef"]
        {
            assert!(!token.is_carried_by(header.as_bytes()), "{header}");
        }
    }

    #[test]
    fn short_empty_and_missing_token_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(matches!(Token::load(&path), Err(TokenError::Read { .. })));
        assert!(matches!(Token::load(dir.path()), Err(TokenError::NotAFile { .. })));
        for text in ["", "short", "has spaces in the middle of it", "\n0123456789abcdef"] {
            write(&path, text);
            assert!(matches!(Token::load(&path), Err(TokenError::NotAToken { .. })), "{text:?}");
        }
        write(&path, "0123456789abcdef\nsecond line");
        assert_eq!(Token::load(&path).unwrap().header_value(), "Bearer 0123456789abcdef");
        assert!(!format!("{:?}", Token::load(&path).unwrap()).contains("0123"));
    }

    #[test]
    fn a_token_file_that_others_may_use_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o601] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = Token::load(&path).unwrap_err();
            assert!(matches!(error, TokenError::Exposed { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        for mode in [0o600, 0o400] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert!(Token::load(&path).is_ok(), "{mode:o}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_token_file_is_read_again_and_a_refused_one_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        write(&path, "0123456789abcdef");
        let file = TokenFile::new(&path, Arc::default());
        let (old, new) = (b"Bearer 0123456789abcdef", b"Bearer fedcba9876543210");
        assert!(file.is_carried_by(old).await);
        write(&path, "fedcba9876543210");
        assert!(file.is_carried_by(old).await, "within the second the file is not read");
        tokio::time::advance(REREAD_AFTER).await;
        assert!(file.is_carried_by(new).await && !file.is_carried_by(old).await);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        tokio::time::advance(REREAD_AFTER).await;
        assert!(!file.is_carried_by(new).await && !file.is_carried_by(old).await);
        assert_eq!(file.troubles.parts(), [Part::Token]);
        write(&path, "fedcba9876543210");
        tokio::time::advance(REREAD_AFTER).await;
        assert!(file.is_carried_by(new).await && file.troubles.parts().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_that_comes_later_lets_in_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let file = TokenFile::new(&path, Arc::default());
        let coming = async {
            tokio::time::sleep(REREAD_AFTER * 3).await;
            assert_eq!(file.troubles.parts(), [Part::Token]);
            write(&path, "0123456789abcdef");
        };
        tokio::join!(file.read(), coming);
        assert!(file.is_carried_by(b"Bearer 0123456789abcdef").await && file.troubles.parts().is_empty());
    }

    /// How often the file was read; and the gate at which each read waits.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static ANSWERS: Mutex<bool> = Mutex::new(false);
    static CHANGED: Condvar = Condvar::new();

    fn hang(path: &Path) -> Result<Token, TokenError> {
        ASKED.fetch_add(1, SeqCst);
        drop(CHANGED.wait_while(ANSWERS.lock().unwrap(), |answers| !*answers).unwrap());
        Token::load(path)
    }

    /// Opens the gate at its end: a runtime waits for the reading thread, also where a test has failed.
    struct Opens;

    impl Drop for Opens {
        fn drop(&mut self) {
            *ANSWERS.lock().unwrap() = true;
            CHANGED.notify_all();
        }
    }

    #[tokio::test]
    async fn a_file_system_that_does_not_answer_has_one_thread_and_lets_nobody_in_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        write(&path, "0123456789abcdef");
        let mut file = TokenFile::new(&path, Arc::default());
        (file.load, file.patience) = (hang, Duration::from_millis(20));
        let gate = Opens;
        let deadline = std::time::Instant::now() + Duration::from_mins(1);
        let ask = || file.is_carried_by(b"Bearer 0123456789abcdef");
        // A busy machine may take longer to start the thread than requests wait.
        let mut rounds = 0;
        while rounds < 2 || ASKED.load(SeqCst) == 0 {
            assert!(std::time::Instant::now() < deadline, "nobody reads the file");
            rounds += 1;
            let answers = futures_util::future::join_all((0..100).map(|_| ask())).await;
            assert!(answers.iter().all(|is_carried| !is_carried));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(ASKED.load(SeqCst), 1);
        drop(gate);
        while !ask().await {
            assert!(std::time::Instant::now() < deadline, "the token is refused for ever");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
