//! A registry in this process: the part of the distribution specification that clients of artifacts use, with the
//! faults that a bad one, or somebody between, would have. It keeps a record of what it was asked.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, LINK, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA256, digest};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// What a registry does wrong, from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One bit of each blob is another.
    ChangedBlob,
    /// Half of each blob is missing, and its length says so.
    ShortBlob,
    /// Half of each blob is missing, and its length does not say so.
    CutBlob,
    /// A megabyte more follows each blob.
    LongBlob,
    /// Manifests are another one than asked for, and the header says the right digest.
    ChangedManifest,
    /// Manifests never end.
    EndlessManifest,
    ManifestType(&'static str),
    /// Blobs are elsewhere.
    Redirect(String),
    /// Uploads go elsewhere.
    UploadsTo(String),
    /// What is asked about what belongs to an artifact has this status.
    Referrers(u16),
    /// Manifests of signatures have this status and type.
    Signatures(u16, &'static str),
    /// So many requests of a method are answered with this status and `Retry-After`, where that is not empty.
    Busy(Method, usize, u16, &'static str),
    /// So many connections are cut off when they ask.
    CutOff(usize),
    /// Lists of what belongs to an artifact go on elsewhere.
    NextPage(String),
    /// So many manifests of signatures are replaced, as soon as they are there, by what somebody else made of the one before.
    Overtaken(usize),
}

/// Who may ask.
#[derive(Clone, Debug)]
pub enum Door {
    Open,
    /// `Basic` with this value.
    Basic(&'static str),
    /// `Bearer`, with tokens of this realm.
    Bearer(String),
}

#[derive(Default)]
struct State {
    blobs: BTreeMap<String, Bytes>,
    manifests: BTreeMap<String, Bytes>,
    /// Lists of what belongs to artifacts, by their digest; further pages by `DIGEST?page=N`, from 1.
    referrers: BTreeMap<String, Bytes>,
    /// They are added to by whatever is put there, which is said.
    keeps_lists: bool,
    fault: Option<Fault>,
    record: Vec<Asked>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub authorization: String,
}

#[derive(Clone)]
pub struct Registry {
    state: Arc<Mutex<State>>,
    door: Arc<Door>,
    pub addr: SocketAddr,
    /// Keeps the server alive.
    _runtime: Arc<tokio::runtime::Runtime>,
}

impl Registry {
    pub fn start(door: Door) -> Self {
        Self::start_with(door, None)
    }

    pub fn start_with(door: Door, tls: Option<TlsAcceptor>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        let (state, door) = (Arc::default(), Arc::new(door));
        let registry = Self { state, door, addr, _runtime: Arc::new(runtime) };
        let (state, door) = (registry.state.clone(), registry.door.clone());
        registry._runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (state, door, tls) = (state.clone(), door.clone(), tls.clone());
                let service = service_fn(move |request| {
                    let (state, door) = (state.clone(), door.clone());
                    async move {
                        if cuts_off(&state) {
                            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
                        }
                        Ok(answer(&state, &door, request).await)
                    }
                });
                tokio::spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    // A body that is shorter than it says ends in an error here, which is the point.
                    let _ = match tls {
                        Some(tls) => match tls.accept(socket).await {
                            Ok(socket) => http.serve_connection(TokioIo::new(socket), service).await,
                            Err(_) => return,
                        },
                        None => http.serve_connection(TokioIo::new(socket), service).await,
                    };
                });
            }
        });
        registry
    }

    pub fn reference(&self, tag: &str) -> String {
        format!("oci://{}/plugins/mine{tag}", self.addr)
    }

    pub fn fault(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// What was asked since this was asked last.
    pub fn record(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().unwrap().record)
    }

    /// Attaches a bundle to an artifact, as `cosign` does: to be found by asking, or by a tag.
    pub fn attach(&self, artifact: &str, bundle: &[u8], by_asking: bool) {
        let other =
            serde_json::json!({"mediaType": MANIFEST, "digest": "sha512:other", "size": 1, "artifactType": "text/x"});
        self.list(artifact, &[other, self.keep(artifact, bundle)], by_asking);
    }

    /// Keeps a bundle of an artifact; gives its entry for the list of them.
    pub fn keep(&self, artifact: &str, bundle: &[u8]) -> serde_json::Value {
        let layer = serde_json::json!({"mediaType": BUNDLE, "digest": sha256(bundle), "size": bundle.len()});
        let config =
            serde_json::json!({"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2});
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": BUNDLE, "config": config, "layers": [layer],
            "subject": {"mediaType": MANIFEST, "digest": artifact, "size": 1},
        });
        let manifest = Bytes::from(manifest.to_string());
        let listed = serde_json::json!({
            "mediaType": MANIFEST, "digest": sha256(&manifest), "size": manifest.len(), "artifactType": BUNDLE,
        });
        let mut state = self.state.lock().unwrap();
        state.blobs.insert(sha256(bundle), Bytes::copy_from_slice(bundle));
        state.manifests.insert(sha256(&manifest), manifest);
        listed
    }

    /// Makes these what belongs to an artifact.
    pub fn list(&self, artifact: &str, all: &[serde_json::Value], by_asking: bool) {
        let index = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": all});
        let index = Bytes::from(index.to_string());
        let mut state = self.state.lock().unwrap();
        match by_asking {
            true => state.referrers.insert(artifact.to_owned(), index),
            false => state.manifests.insert(artifact.replace(':', "-"), index),
        };
    }

    /// The same in pages.
    pub fn list_in_pages(&self, artifact: &str, pages: &[Vec<serde_json::Value>]) {
        self.list(artifact, &pages[0], true);
        for (number, page) in pages.iter().enumerate().skip(1) {
            self.list(&format!("{artifact}?page={number}"), page, true);
        }
    }

    /// From now on it keeps lists of what belongs to artifacts itself.
    pub fn keep_lists(&self) {
        self.state.lock().unwrap().keeps_lists = true;
    }

    /// What such a list holds.
    pub fn listed(&self, artifact: &str, by_asking: bool) -> Vec<serde_json::Value> {
        let state = self.state.lock().unwrap();
        let index = if by_asking { &state.referrers[artifact] } else { &state.manifests[&artifact.replace(':', "-")] };
        let index: serde_json::Value = serde_json::from_slice(index).unwrap();
        index["manifests"].as_array().unwrap().clone()
    }

    /// Makes the list under a tag none.
    pub fn spoil(&self, artifact: &str) {
        self.state.lock().unwrap().manifests.insert(artifact.replace(':', "-"), "[]".into());
    }

    /// A manifest by its tag.
    pub fn manifest(&self, tag: &str) -> serde_json::Value {
        serde_json::from_slice(&self.state.lock().unwrap().manifests[tag]).unwrap()
    }

    /// Puts one there.
    pub fn put(&self, tag: &str, manifest: &serde_json::Value) {
        self.state.lock().unwrap().manifests.insert(tag.to_owned(), manifest.to_string().into());
    }

    pub fn tags(&self) -> Vec<String> {
        self.state.lock().unwrap().manifests.keys().cloned().collect()
    }
}

/// A body that may end in a broken connection.
struct Sent {
    data: Option<Bytes>,
    cut: bool,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.data.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None if self.cut => Poll::Ready(Some(Err(std::io::ErrorKind::BrokenPipe.into()))),
            None => Poll::Ready(None),
        }
    }
}

fn cuts_off(state: &Mutex<State>) -> bool {
    match &mut state.lock().unwrap().fault {
        Some(Fault::CutOff(left)) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

fn busy(state: &mut State, asked: &Method) -> Option<Response<Sent>> {
    let Some(Fault::Busy(method, left, status, after)) = &mut state.fault else { return None };
    if method != asked || *left == 0 {
        return None;
    }
    *left -= 1;
    let mut answer = reply(*status, "");
    if !after.is_empty() {
        answer.headers_mut().insert(RETRY_AFTER, after.parse().unwrap());
    }
    Some(answer)
}

fn sha256(bytes: &[u8]) -> String {
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn reply(status: u16, body: impl Into<Bytes>) -> Response<Sent> {
    let body = body.into();
    let answer = Response::builder().status(StatusCode::from_u16(status).unwrap()).header(CONTENT_LENGTH, body.len());
    answer.body(Sent { data: Some(body), cut: false }).unwrap()
}

async fn answer(state: &Mutex<State>, door: &Door, request: Request<Incoming>) -> Response<Sent> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if [Method::POST, Method::PUT].contains(&parts.method) && !parts.headers.contains_key(CONTENT_LENGTH) {
        return reply(411, "");
    }
    let authorization =
        parts.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    // Of what comes, or of what may.
    let kind = parts.headers.get(CONTENT_TYPE).or(parts.headers.get(ACCEPT));
    let kind = kind.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let path = parts.uri.path_and_query().unwrap().to_string();
    let mut state = state.lock().unwrap();
    state.record.push(Asked { method: parts.method.clone(), path: path.clone(), authorization: authorization.clone() });
    if let Some(answer) = busy(&mut state, &parts.method) {
        return answer;
    }
    if path.starts_with("/token?") {
        let body = if authorization == "Basic dTpw" { "{\"token\": \"t0k\"}" } else { "{\"access_token\": \"anon\"}" };
        return reply(200, body);
    }
    if let Some(path) = path.strip_prefix("/elsewhere/") {
        return state.blobs.get(path).cloned().map_or_else(|| reply(404, ""), |blob| reply(200, blob));
    }
    let challenge = match door {
        Door::Basic(wanted) if authorization != *wanted => "Basic realm=\"here\"".to_owned(),
        Door::Bearer(realm) if authorization != "Bearer t0k" => {
            format!("Bearer realm=\"{realm}\",service=\"reg istry\"")
        }
        _ => return serve(&mut state, &parts.method, &path, &kind, body),
    };
    let words = "{\"errors\": [{\"code\": \"UNAUTHORIZED\", \"message\": \"who\\u001b[31m are you\"}]}";
    let mut refusal = reply(401, words);
    refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge.parse().unwrap());
    refusal
}

fn serve(state: &mut State, method: &Method, path: &str, kind: &str, body: Bytes) -> Response<Sent> {
    let Some(path) = path.strip_prefix("/v2/plugins/mine/") else { return reply(404, "") };
    if let Some(which) = path.strip_prefix("manifests/") {
        return match *method {
            Method::PUT => put_manifest(state, which, kind, body),
            _ => get_manifest(state, which, kind),
        };
    }
    if let (Some(Fault::Referrers(status)), true) = (&state.fault, path.starts_with("referrers/")) {
        return reply(*status, "{\"errors\": [{\"code\": \"TOOMANYREQUESTS\"}]}");
    }
    if let Some(answer) = path.strip_prefix("referrers/").and_then(|which| get_referrers(state, which)) {
        return answer;
    }
    let Some(which) = path.strip_prefix("blobs/") else { return reply(404, "") };
    match (method, which.strip_prefix("uploads/")) {
        (&Method::POST, Some(_)) => {
            let to = match &state.fault {
                Some(Fault::UploadsTo(to)) => to.clone(),
                _ => "/v2/plugins/mine/blobs/uploads/1?session=a".to_owned(),
            };
            let mut taken = reply(202, "");
            taken.headers_mut().insert(LOCATION, to.parse().unwrap());
            taken
        }
        (&Method::PUT, Some(upload)) => match upload.split_once("&digest=") {
            Some(("1?session=a", digest)) if sha256(&body) == digest => {
                state.blobs.insert(digest.to_owned(), body);
                reply(201, "")
            }
            _ => reply(400, "{\"errors\": [{\"code\": \"DIGEST_INVALID\"}]}"),
        },
        _ => get_blob(state, which),
    }
}

fn get_referrers(state: &State, which: &str) -> Option<Response<Sent>> {
    let mut answer = reply(200, state.referrers.get(which)?.clone());
    answer.headers_mut().insert(CONTENT_TYPE, INDEX.parse().unwrap());
    let (artifact, page) = which.split_once("?page=").unwrap_or((which, "0"));
    let next = format!("{artifact}?page={}", page.parse::<usize>().unwrap() + 1);
    let next = match &state.fault {
        Some(Fault::NextPage(elsewhere)) => Some(elsewhere.clone()),
        _ => state.referrers.contains_key(&next).then(|| format!("/v2/plugins/mine/referrers/{next}")),
    };
    if let Some(next) = next {
        let headers = answer.headers_mut();
        headers.append(LINK, "</v2/>; rel=\"first\"".parse().unwrap());
        headers.append(LINK, format!("<{next}>; rel=\"next\"").parse().unwrap());
    }
    Some(answer)
}

fn put_manifest(state: &mut State, tag: &str, kind: &str, body: Bytes) -> Response<Sent> {
    let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
    if parsed["mediaType"] != kind {
        return reply(400, "{\"errors\": [{\"code\": \"MANIFEST_INVALID\"}]}");
    }
    let parts = parsed["layers"].as_array().into_iter().flatten().chain(parsed.get("config"));
    let missing = parts.map(|part| part["digest"].as_str().unwrap()).find(|digest| !state.blobs.contains_key(*digest));
    if missing.is_some() {
        return reply(400, "{\"errors\": [{\"code\": \"MANIFEST_BLOB_UNKNOWN\"}]}");
    }
    let mut answer = reply(201, "");
    if let (true, Some(subject)) = (state.keeps_lists, parsed["subject"]["digest"].as_str()) {
        let one = serde_json::json!({
            "mediaType": MANIFEST, "digest": sha256(&body), "size": body.len(), "artifactType": parsed["artifactType"],
            "annotations": parsed["annotations"],
        });
        let listed = state.referrers.get(subject).map_or(&b"{\"manifests\": []}"[..], |list| list);
        let mut index: serde_json::Value = serde_json::from_slice(listed).unwrap();
        index["manifests"].as_array_mut().unwrap().push(one);
        state.referrers.insert(subject.to_owned(), index.to_string().into());
        answer.headers_mut().insert("oci-subject", subject.parse().unwrap());
    }
    state.manifests.insert(sha256(&body), body.clone());
    let before = state.manifests.insert(tag.to_owned(), body);
    if let (Some(Fault::Overtaken(left)), Some(before)) = (&mut state.fault, before)
        && tag.ends_with(".sig")
        && *left > 0
    {
        *left -= 1;
        let mut theirs: serde_json::Value = serde_json::from_slice(&before).unwrap();
        theirs["annotations"][format!("write-{left}")] = "theirs".into();
        state.manifests.insert(tag.to_owned(), theirs.to_string().into());
    }
    answer
}

fn get_manifest(state: &State, which: &str, takes: &str) -> Response<Sent> {
    let unknown =
        |why| reply(404, format!("{{\"errors\": [{{\"code\": \"MANIFEST_UNKNOWN\", \"message\": \"{why}\"}}]}}"));
    let Some(manifest) = state.manifests.get(which).cloned() else { return unknown("manifest unknown") };
    let digest = sha256(&manifest);
    let said = serde_json::from_slice::<serde_json::Value>(&manifest).unwrap_or_default()["mediaType"].clone();
    if said == INDEX && !takes.contains(INDEX) {
        return unknown("OCI index found, but accept header does not support OCI indexes");
    }
    let (kind, body) = match &state.fault {
        Some(Fault::Signatures(200, kind)) if which.ends_with(".sig") => (*kind, manifest),
        Some(Fault::Signatures(status, _)) if which.ends_with(".sig") => return reply(*status, "{}"),
        Some(Fault::ManifestType(kind)) => (*kind, manifest),
        Some(Fault::ChangedManifest) => {
            (MANIFEST, Bytes::from(String::from_utf8_lossy(&manifest).replace("template", "tomplate")))
        }
        Some(Fault::EndlessManifest) => (MANIFEST, Bytes::from(vec![b' '; 8 << 20])),
        _ if said == INDEX || (which.starts_with("sha256-") && !which.ends_with(".sig")) => (INDEX, manifest),
        _ => (MANIFEST, manifest),
    };
    let mut answer = reply(200, body);
    answer.headers_mut().insert(CONTENT_TYPE, kind.parse().unwrap());
    answer.headers_mut().insert("docker-content-digest", digest.parse().unwrap());
    answer
}

fn get_blob(state: &State, digest: &str) -> Response<Sent> {
    let Some(blob) = state.blobs.get(digest) else { return reply(404, "") };
    let half = blob.slice(..blob.len() / 2);
    match &state.fault {
        Some(Fault::ChangedBlob) => {
            let mut changed = blob.to_vec();
            changed[0] ^= 1;
            reply(200, changed)
        }
        Some(Fault::ShortBlob) => reply(200, half),
        Some(Fault::CutBlob) => {
            let mut cut = reply(200, half);
            cut.headers_mut().insert(CONTENT_LENGTH, blob.len().into());
            cut.body_mut().cut = true;
            cut
        }
        Some(Fault::LongBlob) => reply(200, [&blob[..], &vec![0; 1 << 20]].concat()),
        Some(Fault::Redirect(to)) => {
            let mut elsewhere = reply(307, "");
            elsewhere.headers_mut().insert(LOCATION, format!("{to}{digest}").parse().unwrap());
            elsewhere
        }
        _ => reply(200, blob.clone()),
    }
}
