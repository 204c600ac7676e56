//! TLS on TCP, from PEM files that environment variables name and that a rotation of certificates replaces.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;

use crate::json_log;
use crate::listen::Connection;
use crate::sync::lock;

const CERT: &str = "DRAGOMAN_TLS_CERT";
const KEY: &str = "DRAGOMAN_TLS_KEY";
const CA: &str = "DRAGOMAN_TLS_CA";
/// That a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that wait to be served.
const WAITING: usize = 64;
/// After the system had no socket for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The files of a server: its certificate, the key, and the authorities whose certificates it accepts.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authorities: Option<PathBuf>,
}

/// What differs once a file was replaced or written; `None` if one is missing.
type Stamp = Option<Vec<(u64, i64, i64, u64)>>;

impl Files {
    /// Returns what the environment names; `None` without a certificate.
    fn named() -> Result<Option<Self>, String> {
        let path = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        match (path(CERT), path(KEY)) {
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key, authorities: path(CA) })),
            (None, None) => Ok(None),
            _ => Err(format!("{CERT} and {KEY} belong together: set both or neither")),
        }
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificate, &self.key].into_iter().chain(&self.authorities)
    }

    fn stamp(&self) -> Stamp {
        let stamp =
            |path| fs::metadata(path).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec(), file.size()));
        self.paths().map(stamp).collect()
    }

    /// Returns what a server does with the files; the error quotes nothing of them.
    fn read(&self) -> Result<TlsAcceptor, String> {
        self.configuration().map(|found| TlsAcceptor::from(Arc::new(found))).map_err(|error| {
            let names: Vec<_> = self.paths().map(|path| path.display().to_string()).collect();
            format!("TLS: {}: {error}; each is a PEM file, and the key is the certificate's", names.join(", "))
        })
    }

    fn configuration(&self) -> Result<ServerConfig, Box<dyn std::error::Error>> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match &self.authorities {
            Some(path) => {
                let mut trusted = RootCertStore::empty();
                for certificate in certificates(path)? {
                    trusted.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut configuration = builder.with_single_cert(chain, key)?;
        configuration.alpn_protocols = vec![b"h2".to_vec()];
        Ok(configuration)
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, Box<dyn std::error::Error>> {
    let found = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err(format!("no certificate is in {}", path.display()).into()) } else { Ok(found) }
}

/// The TLS of a server. Each new connection gets the certificate that is in the files by then; while they hold none that can
/// be used, the last one.
pub struct Tls {
    files: Files,
    current: Mutex<(Stamp, TlsAcceptor)>,
}

impl Tls {
    /// Reads what the environment names; `None` without a certificate.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let Some(files) = Files::named()? else { return Ok(None) };
        let stamp = files.stamp(); // taken before the files are read: what is written meanwhile is read the next time
        let acceptor = files.read()?;
        Ok(Some(Self { files, current: Mutex::new((stamp, acceptor)) }))
    }

    fn acceptor(&self) -> TlsAcceptor {
        let mut current = lock(&self.current);
        let stamp = self.files.stamp();
        if stamp != current.0 {
            current.0 = stamp;
            match self.files.read() {
                Ok(acceptor) => {
                    current.1 = acceptor;
                    let path = self.files.certificate.display().to_string();
                    json_log::info("certificate reloaded", &[("certificate", &path)]);
                }
                Err(error) => {
                    json_log::warning("certificate not reloaded; the last one stays", &[("error", &error)]);
                }
            }
        }
        current.1.clone()
    }
}

/// The connections that come over TCP and have shaken hands: one that does not keeps no other from it.
pub struct OverTls(mpsc::Receiver<io::Result<Connection<TlsStream<TcpStream>>>>);

impl OverTls {
    pub fn new(listener: TcpListener, tls: Tls) -> Self {
        let (sender, connections) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = sender.closed() => return,
                };
                let Ok((socket, _)) = accepted else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let (acceptor, sender) = (tls.acceptor(), sender.clone());
                tokio::spawn(async move {
                    let _ = socket.set_nodelay(true); // else it is only slower
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await {
                        let _ = sender.send(Ok(Connection::over_tcp(stream))).await; // or the server has ended
                    }
                });
            }
        });
        Self(connections)
    }
}

impl Stream for OverTls {
    type Item = io::Result<Connection<TlsStream<TcpStream>>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
