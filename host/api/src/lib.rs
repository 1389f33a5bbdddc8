//! HTTP: listeners, routes, endpoints, errors
