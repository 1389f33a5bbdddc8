//! `http` for plugins: an outlet of its own for each of them, so that no connection is shared.

use std::sync::Arc;
use tidegate_egress::{AddressPolicy, CertificateDer, EgressError, Outlet, OutletConfig};
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, HttpClient, HttpOrigins, HttpRequest, HttpResponse};
use tidegate_sandbox::stage::HttpGrant;

/// Sends what plugins send.
#[derive(Default)]
pub struct PluginHttp {
    /// Certificates that are trusted besides the public ones.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl HttpClient for PluginHttp {
    fn open(&self, grant: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String> {
        Ok(Arc::new(Granted(outlet(grant, self.extra_roots.clone())?)))
    }
}

/// The way out that a grant names; opens no connection yet. An error is for the operator.
pub(crate) fn outlet(grant: &HttpGrant, extra_roots: Vec<CertificateDer<'static>>) -> Result<Outlet, String> {
    let networks = grant.networks.iter().map(|network| network.parse()).collect::<Result<_, String>>()?;
    let outlet = Outlet::new(OutletConfig {
        origins: grant.origins.clone(),
        addresses: AddressPolicy::new(networks),
        timeout: grant.timeout,
        extra_roots,
        resolve: None,
    });
    outlet.map_err(|error| error.to_string())
}

struct Granted(Outlet);

impl HttpOrigins for Granted {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>> {
        Box::pin(async move {
            check_secrets(&request)?;
            let HttpRequest { method, url, headers, body, response_bytes, .. } = request;
            let fetched = self.0.send(&method, &url, &headers, body, response_bytes).await.map_err(failure)?;
            let tidegate_egress::Fetched { status, headers, body, truncated } = fetched;
            Ok(HttpResponse { status, headers, body, truncated })
        })
    }
}

/// Refuses a request with a secret that is not for where it goes.
pub(crate) fn check_secrets(request: &HttpRequest) -> Result<(), CapabilityError> {
    let Some(origins) = &request.only_to else { return Ok(()) };
    match Outlet::is_of(&request.url, origins).map_err(failure)? {
        true => Ok(()),
        false => Err(CapabilityError::Denied("a secret of the request is not granted for that origin".into())),
    }
}

/// What a guest reads: it names the origin that the guest itself asked for, and no address behind it.
pub(crate) fn failure(error: EgressError) -> CapabilityError {
    match error {
        EgressError::BadTarget { .. } => CapabilityError::Invalid(error.to_string()),
        EgressError::OriginDenied { .. } => CapabilityError::Denied(error.to_string()),
        EgressError::AddressDenied { ref origin, .. } => {
            let told = format!("the address of {origin} is not granted");
            CapabilityError::DeniedUntold { told, logged: error.to_string() }
        }
        error if error.is_timeout() => CapabilityError::Timeout(error.to_string()),
        error => CapabilityError::Unavailable(error.to_string()),
    }
}
