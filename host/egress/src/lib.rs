//! The one way out of the process: HTTP to origins that the operator configured, and to nothing else.
//!
//! A [`Connector`] belongs to one origin. It keeps a bounded pool of connections, sets TCP_NODELAY on each,
//! never follows a redirect, and bounds every wait and every body. Dropping a [`Response`] closes its
//! connection (HTTP/1.1) or resets its stream (HTTP/2), so that the other side stops working. Names are looked up on a
//! bounded number of threads of this crate's own, equal ones together.
//!
//! An [`Outlet`] is for URLs that plugins write: exact origins, and addresses that were checked before the connection.
//!
//! Read `connector.rs` for the path of a request, then `exchange.rs` for why no task stands between the socket
//! and the reader.

mod address;
mod connector;
mod dial;
mod error;
mod exchange;
mod http2;
mod idle;
mod lookups;
mod origin;
mod outlet;
mod pool;
mod target;

pub use address::{AddressPolicy, Network};
pub use connector::{Connector, ConnectorConfig, Request};
pub use dial::{Resolve, Resolving};
pub use error::EgressError;
pub use exchange::Response;
pub use hyper::header::{HeaderMap, HeaderName, HeaderValue};
pub use hyper::{Method, StatusCode};
pub use outlet::{Fetched, Outlet, OutletConfig};
pub use rustls::pki_types::CertificateDer;
