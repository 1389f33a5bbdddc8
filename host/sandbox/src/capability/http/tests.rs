use super::blanks::BLANK;
use super::bound::{Bound, MAX_SHOWN, origin};
use super::*;
use crate::blueprint::Blueprint;
use crate::capability::Namespace;
use crate::plugin::tests::{load, parts};
use crate::sandbox::Snapshot;
use crate::stage::Limits;
use crate::state::Phase;

/// Answers with that header, and with so much of that body as is asked for.
struct Echo(&'static str, &'static str);

impl HttpOrigins for Echo {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>> {
        let mut body = self.1.as_bytes().to_vec();
        let truncated = body.len() > request.response_bytes;
        body.truncate(request.response_bytes);
        let headers = vec![("x-echo".into(), self.0.into())];
        Box::pin(async move { Ok(HttpResponse { status: 200, headers, body, truncated }) })
    }
}

/// Answers nothing to who asks for `/hangs`; all others, encoded.
struct Encoded;

impl HttpOrigins for Encoded {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, CapabilityError>> {
        Box::pin(async move {
            if request.url.ends_with("/hangs") {
                std::future::pending::<()>().await;
            }
            let headers = vec![("Content-Encoding".into(), "gzip".into())];
            Ok(HttpResponse { status: 200, headers, body: Vec::new(), truncated: false })
        })
    }
}

/// Of bodies that a call may have.
const MOST_BYTES: usize = 1000;

/// Of a plugin that may send two requests at once.
fn access(origins: impl HttpOrigins + 'static, secrets: &[&str]) -> HttpAccess {
    let grant = HttpGrant { concurrency: 2, ..HttpGrant::new(["https://a.example".to_owned()]) };
    let secrets: Vec<Secret> = secrets.iter().map(|secret| Secret::new(*secret)).collect();
    HttpAccess::new(Arc::new(origins), grant, &secrets)
}

fn to(path: &str, response_bytes: usize) -> Outgoing {
    let request = HttpRequest {
        method: "GET".into(),
        url: format!("https://a.example{path}"),
        headers: Vec::new(),
        only_to: None,
        body: Vec::new(),
        timeout: Duration::from_secs(60),
        response_bytes,
    };
    Outgoing { request, bound: Bound::Grant }
}

/// What a guest that may read so many bytes gets, also where its request has none of the secrets.
async fn told(echo: Echo, secrets: &[&str], most: usize) -> HttpResponse {
    let access = access(echo, secrets);
    access.send(to("/", most), &access.places(TenantId::new("a"), MOST_BYTES)).await.unwrap()
}

#[tokio::test]
async fn a_secret_that_comes_back_is_blanked_out() {
    let echo = Echo("Bearer hunter22, unt", "hunter22 and hunter22hunter22, hunter2");
    let response = told(echo, &["", "hunter22"], 1000).await;
    assert_eq!(response.headers[0].1, "Bearer [secret], unt");
    assert_eq!(response.body, b"[secret] and [secret][secret], hunter2");
    assert!(!response.truncated);
    // One that is a part of another, and two that share a byte.
    let echo = Echo("hunter22 é cabab é", "hunter22, cabab");
    let response = told(echo, &["unt", "hunter22", "cab", "bab"], 1000).await;
    assert_eq!(response.headers[0].1, "[secret] é [secret] é");
    assert_eq!(response.body, b"[secret], [secret]");
}

/// Neither does the cut tell whether what is before it begins as the secret does: a guest would guess that byte by byte.
#[tokio::test]
async fn wherever_a_body_is_cut_nothing_of_a_secret_is_left_and_all_else_is() {
    const BODY: &str = "token a1b2c3d4 a1b2c3d, a1b2c3d4a1b2c3d4.";
    for most in 0..=BODY.len() + 1 {
        let response = told(Echo("", BODY), &["a1b2c3d4", "c3d4"], most).await;
        let mut expected = String::new();
        for (at, letter) in BODY.char_indices().take_while(|(at, _)| *at < most) {
            let of_secret = (6..14).contains(&at) || (24..40).contains(&at);
            match at {
                6 | 24 | 32 => expected.push_str(BLANK),
                _ if of_secret => {}
                _ => expected.push(letter),
            }
        }
        assert_eq!(String::from_utf8(response.body).unwrap(), expected, "the first {most} bytes");
        assert_eq!(response.truncated, most < BODY.len(), "the first {most} bytes");
    }
}

#[tokio::test]
async fn an_encoded_answer_to_a_plugin_with_a_secret_is_refused() {
    let [with, without] = [&["hunter22"][..], &[]].map(|secrets| access(Encoded, secrets));
    let refused = with.send(to("/", 9), &with.places(TenantId::new("a"), MOST_BYTES)).await;
    assert!(matches!(refused, Err(CapabilityError::Unsupported(_))), "{refused:?}");
    without.send(to("/", 9), &without.places(TenantId::new("a"), MOST_BYTES)).await.unwrap();
    let plain = vec![("content-encoding".into(), "Identity".into())];
    check_plain(&HttpResponse { status: 200, headers: plain, body: Vec::new(), truncated: false }).unwrap();
}

#[tokio::test]
async fn who_asks_a_service_that_hangs_leaves_others_their_share() {
    let access = access(Encoded, &[]);
    let [greedy, other] = ["greedy", "other"].map(|tenant| access.places(TenantId::new(tenant), MOST_BYTES));
    let all = (0..5).map(|_| access.send(to("/hangs", 9), &greedy));
    let mut hanging = Box::pin(futures_util::future::join_all(all));
    assert!(futures_util::poll!(&mut hanging).is_pending());
    assert_eq!(access.running.held(), 2, "all there are");
    assert_eq!(access.send(to("/", 9), &other).await.unwrap().status, 200);
}

/// They wait for each other in the host, whose memory nobody counts for them.
#[tokio::test]
async fn bodies_that_the_calls_instance_could_not_take_together_are_not_kept_for_it() {
    let plugin = load(1, Snapshot::Never).unwrap();
    let (_, blueprint) = parts(&plugin);
    for (memory_bytes, num_kept) in [(14, 2), (15, 3), (4, 0)] {
        let limits = Limits { memory_bytes, ..blueprint.limits.clone() };
        let http = Some(Arc::new(access(Echo("", "12345"), &[])));
        let blueprint = Arc::new(Blueprint { limits, http, ..Blueprint::clone(blueprint) });
        let namespace = Namespace::of_tenant("p", TenantId::new("a"));
        let mut state = HostState::new(blueprint, namespace, Phase::Serve);
        state.until = Instant::now() + Duration::from_secs(60);
        let request = || wit::Request {
            method: "GET".into(),
            url: "https://a.example/".into(),
            headers: Vec::new(),
            secret_headers: Vec::new(),
            body: Vec::new(),
            timeout_ms: 0,
        };
        let answers = wit::Host::send_all(&mut state, (0..3).map(|_| request()).collect()).await.unwrap();
        assert!(answers[..num_kept].iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.body == b"12345")));
        for answer in &answers[num_kept..] {
            assert!(matches!(answer, Err(wit::Error::InvalidInput(_))), "{memory_bytes}: {answer:?}");
        }
    }
}

/// Which of three it was is what its author and its operator have to know.
#[tokio::test]
async fn who_has_no_answer_in_time_is_told_of_whom_how_long_and_what_says_so() {
    let ms = Duration::from_millis;
    for (own, granted, left, timeout, bound) in [
        (Some(ms(20)), ms(20), ms(30), 20, Bound::Request),
        (Some(ms(30)), ms(20), ms(20), 20, Bound::Grant),
        (Some(ms(30)), ms(20), ms(10), 10, Bound::Call),
        (None, ms(20), ms(30), 20, Bound::Grant),
    ] {
        assert_eq!(least(own, granted, left), (ms(timeout), bound));
    }
    let access = access(Encoded, &[]);
    for (bound, why) in [
        (Bound::Request, "the request's own `timeout-ms`"),
        (Bound::Grant, "`http.timeout_ms` of the grant"),
        (Bound::Call, "what was left to the call (`wall_ms`, or the client's request)"),
    ] {
        let Outgoing { request, .. } = to("/hangs", 9);
        let outgoing = Outgoing { request: HttpRequest { timeout: ms(20), ..request }, bound };
        let late = access.send(outgoing, &access.places(TenantId::new("a"), MOST_BYTES)).await.unwrap_err();
        assert_eq!(late.to_string(), format!("timeout: https://a.example has not answered in 20 ms, {why}"));
    }
}

#[test]
fn an_origin_in_a_message_has_no_password_no_path_and_an_end() {
    for (url, shown) in [
        ("https://me:secret@a.example:8443/path?key=1", "https://a.example:8443"),
        ("http://a.example?q#f", "http://a.example"),
        ("a.example/x", "a.example"),
        ("http://a\n.example", "http://a\\n.example"),
    ] {
        assert_eq!(origin(url), shown);
    }
    assert_eq!(origin(&"x".repeat(9000)).len(), MAX_SHOWN);
}

#[test]
fn secrets_that_are_the_same_are_looked_for_once() {
    let access = access(Encoded, &["b", "", "a", "b"]);
    assert_eq!(access.secrets, ["a", "b"].map(Secret::new));
}

#[test]
fn a_secret_is_filled_in_where_its_grant_says_and_nowhere_else() {
    let granted = SecretGrant { headers: vec!["x-key".into()], ..SecretGrant::new("hunter22") };
    check_place(&granted, "X-Key", "").unwrap();
    check_place(&SecretGrant::new("hunter22"), "Authorization", "Bearer ").unwrap();
    for (name, prefix) in [("authorization", ""), ("x-request-id", ""), ("x-key ", ""), ("x-key", &"a".repeat(65))] {
        check_place(&granted, name, prefix).unwrap_err();
    }
    let mut only_to = None;
    let origins = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    narrow(&mut only_to, &[]);
    assert_eq!(only_to, None, "it may go to all");
    narrow(&mut only_to, &origins(&["a", "b"]));
    narrow(&mut only_to, &[]);
    narrow(&mut only_to, &origins(&["b", "c"]));
    assert_eq!(only_to, Some(origins(&["b"])));
    narrow(&mut only_to, &origins(&["c"]));
    assert_eq!(only_to, Some(Vec::new()), "together they may go nowhere");
}

#[test]
fn headers_of_the_connection_are_the_hosts() {
    let header = |name: &str| vec![(name.to_owned(), "x".to_owned())];
    for name in RESERVED.into_iter().chain(["Host", "Transfer-Encoding"]) {
        assert!(check_headers(&header(name)).is_err(), "{name}");
    }
    for name in ["x-own", "range", "accept-encoding"] {
        assert!(check_headers(&header(name)).is_ok(), "{name}");
    }
    for name in ["range", "Accept-Encoding"] {
        assert!(check_headers_beside_secrets(&header(name)).is_err(), "{name}");
    }
    assert!(check_headers_beside_secrets(&header("x-own")).is_ok());
    let many: Vec<_> = (0..65).flat_map(|_| header("x")).collect();
    assert!(check_headers(&many).is_err());
}

#[test]
fn a_method_a_url_and_a_body_have_so_many_bytes_at_most() {
    let plugin = load(1, Snapshot::Never).unwrap();
    let (_, blueprint) = parts(&plugin);
    let state = HostState::new(blueprint.clone(), Namespace::of_tenant("p", TenantId::new("a")), Phase::Serve);
    let grant = HttpGrant { request_bytes: 100, ..HttpGrant::new(["https://a.example".to_owned()]) };
    let access = HttpAccess::new(Arc::new(Encoded), grant, []);
    let outgoing = |method_bytes: usize, url_bytes: usize, body_bytes: usize| {
        let (method, url, body) = ("M".repeat(method_bytes), "u".repeat(url_bytes), vec![0; body_bytes]);
        let request =
            wit::Request { method, url, headers: Vec::new(), secret_headers: Vec::new(), body, timeout_ms: 0 };
        state.outgoing(&access, request).map(|outgoing| outgoing.request.body.len())
    };
    assert_eq!(outgoing(MAX_METHOD_BYTES, MAX_URL_BYTES, 100), Ok(100));
    for (method_bytes, url_bytes, body_bytes, why) in [
        (33, 1, 0, "a method has at most 32 bytes"),
        (4, MAX_URL_BYTES + 1, 0, "a URL has at most 8192 bytes, a body at most 100 (http.request_kib)"),
        (4, 1, 101, "a URL has at most 8192 bytes, a body at most 100 (http.request_kib)"),
    ] {
        assert_eq!(outgoing(method_bytes, url_bytes, body_bytes), Err(CapabilityError::Invalid(why.into())));
    }
}
