//! The one checked outbound connector
