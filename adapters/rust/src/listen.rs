//! Where a server listens, and who may call.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, geteuid};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::guard;
use crate::reason::{Reason, Refusal};
use crate::tls::Tls;

/// A socket that is listened on.
pub enum Listener {
    /// With the lock of its path.
    Unix(UnixListener, File),
    Tcp(TcpListener),
    Tls(TcpListener, Tls),
}

/// Listens at "unix:/path", which only this user can reach, or at "host:port", where callers need this user's token: with a
/// certificate by TLS and anywhere, without one on loopback. An error says what to do.
pub async fn listen(address: &str) -> Result<Listener, String> {
    match address.strip_prefix("unix:") {
        Some(path) => listen_unix(address, Path::new(path.strip_prefix("//").unwrap_or(path))),
        None => listen_tcp(address).await,
    }
}

fn listen_unix(address: &str, path: &Path) -> Result<Listener, String> {
    let failed = |error: io::Error| format!("listen on {address}: {error}");
    if !path.is_absolute() {
        return Err(format!("{address:?}: the path of a Unix socket is absolute"));
    }
    let directory = path.parent().unwrap_or(path);
    if fs::metadata(directory).map_err(failed)?.mode() & 0o022 != 0 {
        return Err(format!(
            "listen on {address}: other users can write to {} and could replace the socket; \
             use a directory that only you can write",
            directory.display()
        ));
    }
    // A second bind on the same path would unlink a live server's socket. The lock file stays: removing it would let two
    // owners lock different files.
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let lock_path = PathBuf::from(format!("{}.lock", path.display()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let lock = options.open(lock_path).map_err(failed)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| format!("another server listens on {address}; stop it or choose another path"))?;
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(format!("listen on {address}: something is there that is no socket; choose another path"));
        }
        fs::remove_file(path).map_err(failed)?; // of a server that was killed
    }
    let socket = UnixSocket::new_stream().map_err(failed)?;
    socket.bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?; // before anybody can connect
    Ok(Listener::Unix(socket.listen(1024).map_err(failed)?, lock))
}

async fn listen_tcp(address: &str) -> Result<Listener, String> {
    let Some((host, _)) = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
        return Err(format!("{address:?} is no address; use unix:/path or host:port"));
    };
    let tls = Tls::from_environment()?;
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    if host != "localhost" && !ip.is_some_and(|ip| ip.is_loopback()) && tls.is_none() {
        return Err(format!(
            "refusing to listen on {address} without TLS: what can reach it can run programs as this user. Listen on \
             127.0.0.1:PORT or unix:/path, or set DRAGOMAN_TLS_CERT and DRAGOMAN_TLS_KEY to the files of a certificate and \
             its key."
        ));
    }
    if std::env::var_os("DRAGOMAN_TRUST").is_some_and(|path| !path.is_empty()) {
        return Err(
            "DRAGOMAN_TRUST is set, and adapters on the Rust SDK do not know callers by their certificates: unset it \
                    for this process, and give its callers the token"
                .to_owned(),
        );
    }
    if user_token()?.is_none() {
        return Err("over TCP callers need a token, and there is none: 'dragoman token' makes it".to_owned());
    }
    let listener = TcpListener::bind(address).await.map_err(|error| format!("listen on {address}: {error}"))?;
    Ok(match tls {
        Some(tls) => Listener::Tls(listener, tls),
        None => Listener::Tcp(listener),
    })
}

/// Returns the token of this user's servers: `DRAGOMAN_TOKEN`, else that of the user's file; `None` if there is none.
fn user_token() -> Result<Option<String>, String> {
    let from_environment = std::env::var("DRAGOMAN_TOKEN").unwrap_or_default().trim().to_owned();
    if !from_environment.is_empty() {
        return Ok(Some(from_environment));
    }
    let path = state_directory().join("token");
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("read the token: {error}")),
    };
    let found = file.metadata().map_err(|error| format!("read the token: {error}"))?;
    if !found.is_file() || found.mode() & 0o077 != 0 || found.uid() != geteuid().as_raw() {
        return Err(format!("{} can be read by others; remove it, and a new token is made", path.display()));
    }
    let mut token = String::new();
    file.take(512).read_to_string(&mut token).map_err(|error| format!("read the token: {error}"))?;
    Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
}

fn state_directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(base) = variable("XDG_STATE_HOME") {
        return base.join("dragoman");
    }
    let home = variable("HOME").unwrap_or_else(|| PathBuf::from("/"));
    let inner =
        if cfg!(target_os = "macos") { "Library/Application Support/dragoman" } else { ".local/state/dragoman" };
    home.join(inner)
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy)]
pub struct Caller {
    /// Of a caller over a Unix socket.
    uid: Option<u32>,
    is_unix: bool,
    /// Why its calls are refused.
    refused: Option<&'static str>,
}

impl Caller {
    fn of_unix(socket: &UnixStream) -> Self {
        let Ok(peer) = socket.peer_cred() else {
            return Self { uid: None, is_unix: true, refused: Some("the caller is not known") };
        };
        let is_beneath = peer.pid().and_then(Pid::from_raw).is_some_and(is_beneath_this);
        let refused = match peer.uid() {
            uid if uid != geteuid().as_raw() && uid != 0 => Some("this server answers its own user only"),
            _ if is_beneath => {
                Some("this call comes from an agent's run, which may not call the server that it runs under")
            }
            _ => None,
        };
        Self { uid: Some(peer.uid()), is_unix: true, refused }
    }

    /// Returns how it was recognized.
    pub fn name(&self) -> String {
        self.uid.map_or_else(|| "token".to_owned(), |uid| format!("uid {uid}"))
    }

    /// Rejects a call that is not answered. `authorization` is the metadata of that name.
    pub fn admit(self, path: &str, authorization: Option<&[u8]>) -> Result<(), Refusal> {
        if let Some(why) = self.refused {
            return Err(Refusal::new(Reason::CallerRefused, why));
        }
        if self.is_unix || path.starts_with("/grpc.health.v1.Health/") {
            return Ok(());
        }
        let expected = user_token().ok().flatten().map(|token| format!("Bearer {token}"));
        if let (Some(expected), Some(sent)) = (expected, authorization)
            && is_same(expected.as_bytes(), sent)
        {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::TokenRequired,
            "over TCP each call needs the metadata 'authorization: Bearer TOKEN', with what 'dragoman token' prints",
        ))
    }
}

/// Compares in a time that does not depend on where the difference is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// Returns whether a process was started by this one, or by what that has started.
fn is_beneath_this(pid: Pid) -> bool {
    std::iter::successors(guard::parent_of(pid), |pid| guard::parent_of(*pid))
        .any(|above| above == rustix::process::getpid())
}

/// A connection, and who is at its other end.
pub struct Connection<S> {
    inner: S,
    caller: Caller,
}

impl<S> Connection<S> {
    pub fn over_tcp(inner: S) -> Self {
        Self { inner, caller: Caller { uid: None, is_unix: false, refused: None } }
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// The connections that come over a Unix socket.
pub struct OverUnix(pub UnixListener);

impl Stream for OverUnix {
    type Item = io::Result<Connection<UnixStream>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0
            .poll_accept(context)
            .map(|accepted| Some(accepted.map(|(inner, _)| Connection { caller: Caller::of_unix(&inner), inner })))
    }
}

/// The connections that come over TCP.
pub struct OverTcp(pub TcpListener);

impl Stream for OverTcp {
    type Item = io::Result<Connection<TcpStream>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| {
            Some(accepted.and_then(|(inner, _)| inner.set_nodelay(true).map(|()| Connection::over_tcp(inner))))
        })
    }
}
