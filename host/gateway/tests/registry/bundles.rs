//! Signatures of others: in the bundles that `cosign` 3 puts beside an artifact, and under the tag that older versions use.

use super::Desk;
use super::server::{Door, Fault, MANIFEST, Registry};
use base64::Engine;

impl Desk {
    /// Packs the plugin without a signature, makes the key pair `name.pem`, and trusts that alone in `tidegate.toml`, for what
    /// lies in `taken`.
    fn trusting_another(&self, name: &str) -> String {
        self.pack_unsigned();
        let trusted = self.good(&format!("plugin key new {name}.pem")).trim().to_owned();
        let stage = "[[pipeline.stage]]\nplugin = \"mine\"\nfile = \"taken\"\n";
        let config = format!("[plugins]\ntrusted_keys = [\"{trusted}\"]\n{stage}");
        std::fs::write(self.path("tidegate.toml"), config).unwrap();
        trusted
    }
}

/// A bundle as `cosign sign` makes it, by a key of ours.
fn bundle(pem: &str, artifact: &str) -> Vec<u8> {
    stated(pem, artifact, "https://sigstore.dev/cosign/sign/v1")
}

/// One that states something else of an artifact.
fn stated(pem: &str, artifact: &str, predicate: &str) -> Vec<u8> {
    let base64 = base64::engine::general_purpose::STANDARD;
    let der = base64.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    let key = ring::signature::Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).unwrap();
    let kind = "application/vnd.in-toto+json";
    let payload = serde_json::json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": artifact.trim_start_matches("sha256:")}}],
        "predicateType": predicate,
        "predicate": {},
    });
    let payload = payload.to_string();
    let signed = key.sign(format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len()).as_bytes());
    let bundle = serde_json::json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "theirs"}},
        "dsseEnvelope": {
            "payload": base64.encode(payload), "payloadType": kind, "signatures": [{"sig": base64.encode(signed.as_ref())}],
        },
    });
    bundle.to_string().into_bytes()
}

/// The operator's own folder holds it then, and the server asks no registry.
#[test]
fn a_bundle_that_is_attached_in_the_registry_counts_as_a_signature_from_then_on() {
    for by_asking in [true, false] {
        let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
        desk.trusting_another("theirs");
        desk.push(&registry, ":1");
        let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
        desk.good(&pull);
        desk.refused("check tidegate.toml", &["is not signed"]);
        let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
        registry.attach(&desk.artifact(), &bundle(&pem, &format!("sha256:{}", "0".repeat(64))), by_asking);
        desk.good(&pull);
        desk.refused("check tidegate.toml", &["which is by none of plugins.trusted_keys"]);
        registry.attach(&desk.artifact(), &bundle(&pem, &desk.artifact()), by_asking);
        desk.good(&pull);
        assert!(desk.good("check tidegate.toml").contains("is good"), "by asking: {by_asking}");
    }
}

/// A bundle names no key, so that only who knows the key finds whose it is.
#[test]
fn a_key_that_is_trusted_no_more_has_signed_what_is_locked_all_the_same() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    let theirs = desk.good("plugin key new theirs.pem").trim().to_owned();
    desk.push(&registry, ":1");
    let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
    registry.attach(&desk.artifact(), &bundle(&pem, &desk.artifact()), true);
    let config = |trusted: &[&str]| {
        let stage = format!("[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{}\"\n", registry.reference(":1"));
        std::fs::write(desk.path("tidegate.toml"), format!("[plugins]\ntrusted_keys = {trusted:?}\n{stage}")).unwrap();
    };
    config(&[&desk.key, &theirs]);
    desk.good("plugin lock tidegate.toml");
    let lock = || std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    let before = lock();
    assert!(before.contains(&theirs) && before.contains(&desk.key));
    config(&[&desk.key]);
    for args in ["plugin lock tidegate.toml", "plugin lock tidegate.toml --upgrade"] {
        assert!(desk.good(args).contains("same     "), "{args}");
        assert_eq!(lock(), before, "{args}");
    }
    // Trust is another thing.
    let nobodys = desk.good("plugin key new nobodys.pem").trim().to_owned();
    config(&[&nobodys]);
    desk.refused("plugin lock tidegate.toml", &["which is none of plugins.trusted_keys"]);
}

/// Whoever may write to the repository may put anything beside an artifact, and attestations are there by right.
#[test]
fn what_lies_beside_a_signed_artifact_is_in_nobodys_way() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.trusting_another("theirs");
    desk.push(&registry, ":1");
    let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
    let artifact = desk.artifact();
    let (large, nonsense) = (vec![b' '; 2 << 20], b"no bundle".to_vec());
    let mut built = registry.keep(&artifact, &large);
    built["annotations"] = serde_json::json!({"dev.sigstore.bundle.predicateType": "https://slsa.dev/provenance/v1"});
    let mut signed = registry.keep(&artifact, &bundle(&pem, &artifact));
    signed["annotations"] =
        serde_json::json!({"dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1"});
    let mut gone = signed.clone();
    gone["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    let mut strange = gone.clone();
    strange["digest"] = "sha256:..".into();
    let mut all = vec![serde_json::json!({"digest": 5}), built.clone(), gone, strange];
    all.extend([registry.keep(&artifact, &large), registry.keep(&artifact, &nonsense), signed]);
    // More than are looked at.
    all.splice(0..0, vec![built; 40]);
    registry.list(&artifact, &all, true);
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    let said = desk.good(&pull);
    for why in ["listed and not there", "more than 1048576 bytes", "sha256:.."] {
        assert!(said.contains("passed over a bundle") && said.contains(why), "{why}: {said}");
    }
    assert!(desk.good("check tidegate.toml").contains("is good"));
    // That there is no list is one thing, that it is not given another.
    for status in [302, 303, 307, 400, 404, 405, 406, 501] {
        registry.fault(Some(Fault::Referrers(status)));
        desk.good(&pull);
    }
    for status in [403, 429, 500] {
        registry.fault(Some(Fault::Referrers(status)));
        let said = desk.refused(&pull, &["does not give the list of signatures", &status.to_string()]);
        assert!(said.contains("TOOMANYREQUESTS"), "{said}");
    }
}

/// As many of them as are taken, and more: anybody makes keys.
#[test]
fn bundles_of_nobody_keep_a_known_keys_from_no_lock_and_take_none_from_a_folder() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    let trusted = desk.trusting_another("theirs");
    desk.push(&registry, ":1");
    desk.good("plugin key new nobodys.pem");
    let [pem, nobodys] = ["theirs.pem", "nobodys.pem"].map(|name| std::fs::read_to_string(desk.path(name)).unwrap());
    let artifact = desk.artifact();
    let signed = registry.keep(&artifact, &bundle(&pem, &artifact));
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    registry.list(&artifact, std::slice::from_ref(&signed), true);
    desk.good(&pull);
    let worthless = |count: usize| {
        let one = |n: usize| registry.keep(&artifact, &[bundle(&nobodys, &artifact), vec![b' '; n]].concat());
        (0..count).map(one).collect::<Vec<_>>()
    };
    let beside = |count: usize| registry.list(&artifact, &[worthless(count), vec![signed.clone()]].concat(), true);
    beside(40);
    // Without a key that is known, no more are looked at than are taken; what the folder has stays.
    for _ in 0..2 {
        assert!(desk.good(&pull).contains("has 41 bundles; the first 32 are looked at"));
        assert!(desk.good("check tidegate.toml").contains("is good"));
    }
    let stage = format!("[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{}\"\n", registry.reference(":1"));
    let config = format!("[plugins]\ntrusted_keys = [\"{trusted}\"]\n{stage}");
    std::fs::write(desk.path("tidegate.toml"), config).unwrap();
    let lock = || std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    desk.good("plugin lock tidegate.toml");
    let first = lock();
    for args in ["plugin lock tidegate.toml", "plugin lock tidegate.toml --upgrade"] {
        assert!(desk.good("check tidegate.toml").contains("is good"));
        assert!(desk.good(args).contains("same     "), "{args}");
        assert_eq!(lock(), first, "{args}");
    }
    // There is a bound all the same.
    std::fs::remove_dir_all(desk.path("tidegate-plugins")).unwrap();
    beside(256);
    desk.refused(
        "plugin lock tidegate.toml",
        &["has 257 bundles; the first 256 are looked at", "none of plugins.trusted"],
    );
}

#[test]
fn a_list_is_followed_from_page_to_page_on_its_own_host_to_a_bound() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.trusting_another("theirs");
    desk.push(&registry, ":1");
    let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
    let artifact = desk.artifact();
    let signed = registry.keep(&artifact, &bundle(&pem, &artifact));
    let other =
        serde_json::json!({"mediaType": "text/x", "digest": "sha512:other", "size": 1, "artifactType": "text/x"});
    let pages = |count: usize| {
        let mut pages = vec![vec![other.clone()]; count - 1];
        pages.push(vec![signed.clone()]);
        pages
    };
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    registry.list_in_pages(&artifact, &pages(9));
    assert!(desk.good(&pull).contains("has more than 8 pages"));
    desk.refused("check tidegate.toml", &["is not signed"]);
    // Another host would be told who asks.
    registry.fault(Some(Fault::NextPage("http://localhost:1/v2/".into())));
    assert!(desk.good(&pull).contains("goes on elsewhere, at http://localhost:1/v2/"));
    registry.fault(None);
    registry.list_in_pages(&artifact, &pages(8));
    // The ninth page of before is still there, and not looked at.
    assert!(desk.good(&pull).contains("has more than 8 pages"));
    assert!(desk.good("check tidegate.toml").contains("is good"));
}

#[test]
fn more_signatures_than_are_kept_are_in_nobodys_way() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let artifact = desk.artifact();
    let pem = std::fs::read_to_string(desk.path("key.pem")).unwrap();
    let of_others = (0..33).map(|n| registry.keep(&artifact, &bundle(&pem, &format!("sha256:{n:064}"))));
    registry.list(&artifact, &of_others.collect::<Vec<_>>(), true);
    let said = desk.good(&format!("plugin pull {} --output taken", registry.reference(":1")));
    assert!(said.contains("33 bundles; the first 32 are looked at"), "{said}");
    assert!(desk.good("plugin inspect taken").contains(&desk.key));
}

/// Nor is what is no signature, under the tag of signatures.
#[test]
fn what_lies_among_signatures_is_in_nobodys_way() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.trusting_another("theirs");
    desk.push(&registry, ":1");
    let (artifact, pem) = (desk.artifact(), std::fs::read_to_string(desk.path("theirs.pem")).unwrap());
    desk.good(&format!("plugin sign {} --key theirs.pem", registry.reference(":1")));
    let tag = format!("{}.sig", artifact.replace(':', "-"));
    let good = registry.manifest(&tag);
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    let junk = |count: usize, annotations: serde_json::Value| {
        let mut layer = good["layers"][0].clone();
        layer["annotations"] = annotations;
        vec![layer; count]
    };
    let is_no_base64 = serde_json::json!({"dev.cosignproject.cosign/signature": "no base64!"});
    let mut large = junk(1, is_no_base64.clone());
    large[0]["size"] = (2 << 20).into();
    let of = |key: &str, value: serde_json::Value| {
        let mut layer = good["layers"][0].clone();
        layer[key] = value;
        vec![layer]
    };
    for (layers, why) in [
        (of("size", 1.into()), "is longer than 1 bytes"),
        (of("size", 4000.into()), "should have 4000 bytes"),
        (of("digest", format!("sha256:{}", "0".repeat(64)).into()), "404"),
        (junk(1, serde_json::json!({})), "has no signature"),
        (junk(3, is_no_base64.clone()), "is no base64"),
        (large, "passed over 1 signatures"),
    ] {
        let mut manifest = good.clone();
        manifest["layers"].as_array_mut().unwrap().splice(0..0, layers);
        registry.put(&tag, &manifest);
        let said = desk.good(&pull);
        assert!(said.contains("passed over") && said.contains(why), "{why}: {said}");
        assert!(desk.good("check tidegate.toml").contains("is good"), "{why}");
    }
    // However many there are, they take no room of bundles.
    let mut manifest = good.clone();
    manifest["layers"] = junk(40, is_no_base64).into();
    registry.put(&tag, &manifest);
    // Those that were taken before would stay.
    std::fs::remove_dir_all(desk.path("taken")).unwrap();
    assert!(desk.good(&pull).contains("passed over 8 signatures"));
    desk.refused("check tidegate.toml", &["is not signed"]);
    let listed = registry.keep(&artifact, &bundle(&pem, &artifact));
    registry.list(&artifact, &[listed], true);
    desk.good(&pull);
    assert!(desk.good("check tidegate.toml").contains("is good"));
    registry.put(&tag, &serde_json::json!("no manifest"));
    assert!(desk.good(&pull).contains("passed over the signatures of"));
    assert!(desk.good("check tidegate.toml").contains("is good"));
    for (fault, why) in [
        (Fault::Signatures(400, MANIFEST), "400"),
        (Fault::Signatures(406, MANIFEST), "406"),
        (Fault::Signatures(200, "application/vnd.docker.distribution.manifest.v2+json"), "docker"),
        (Fault::Signatures(200, "application/vnd.oci.image.index.v1+json"), "list of artifacts"),
    ] {
        registry.fault(Some(fault));
        let said = desk.good(&pull);
        assert!(said.contains("passed over the signatures of") && said.contains(why), "{why}: {said}");
    }
    // It may have them the next time.
    for status in [403, 500] {
        registry.fault(Some(Fault::Signatures(status, MANIFEST)));
        desk.refused(&pull, &["its signatures", &status.to_string()]);
    }
}

/// As in a registry.
#[test]
fn what_lies_among_the_signatures_of_a_folder_is_in_nobodys_way() {
    let desk = Desk::new();
    let index: serde_json::Value = serde_json::from_str(&desk.index("mine.oci")).unwrap();
    let blob =
        |digest: &serde_json::Value| desk.path("mine.oci/blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let manifest = blob(&index["manifests"][1]["digest"]);
    let signed: serde_json::Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    let payload = blob(&signed["layers"][0]["digest"]);
    desk.good("plugin push file:there --from mine.oci");
    for (file, why) in [(&payload, "passed over a signature of"), (&manifest, "passed over the signatures of")] {
        std::fs::write(file, "another").unwrap();
        for command in ["plugin inspect mine.oci", "plugin pull ./mine.oci --output taken"] {
            let said = desk.good(command);
            assert!(said.contains(why) && said.contains("signed by      nobody"), "{command}: {said}");
        }
    }
    // They come again with the artifact.
    desk.good("plugin pull file:there --output mine.oci");
    assert!(desk.good("plugin inspect mine.oci").contains(&desk.key));
}

/// As `cosign` 3.0 writes the list where the registry keeps none: the config's type in place of the artifact's, and nothing else.
#[test]
fn a_list_that_does_not_say_what_it_lists_is_looked_through() {
    for kind in [Some("application/vnd.oci.empty.v1+json"), None] {
        let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
        let trusted = desk.trusting_another("theirs");
        desk.push(&registry, ":1");
        let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
        let artifact = desk.artifact();
        let unnamed = |content: &[u8]| {
            let mut one = registry.keep(&artifact, content);
            one.as_object_mut().unwrap().remove("artifactType");
            if let Some(kind) = kind {
                one["artifactType"] = kind.into();
            }
            one
        };
        let mut other = unnamed(b"");
        other["digest"] = artifact.as_str().into();
        let built = unnamed(&stated(&pem, &artifact, "https://slsa.dev/provenance/v1"));
        let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
        registry.list(&artifact, &[other.clone(), built.clone()], false);
        assert!(!desk.good(&pull).contains("passed over"));
        desk.refused("check tidegate.toml", &["is not signed", &trusted]);
        registry.list(&artifact, &[other, built, unnamed(&bundle(&pem, &artifact))], false);
        assert!(!desk.good(&pull).contains("passed over"));
        assert!(desk.good("check tidegate.toml").contains("is good"), "{kind:?}");
    }
}

#[test]
fn a_bundle_travels_on_beside_its_artifact_and_once() {
    for keeps_lists in [true, false] {
        let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
        let (next, other) = (Registry::start(Door::Open), Registry::start(Door::Open));
        desk.trusting_another("theirs");
        desk.push(&registry, ":1");
        let pem = std::fs::read_to_string(desk.path("theirs.pem")).unwrap();
        let artifact = desk.artifact();
        registry.attach(&artifact, &bundle(&pem, &artifact), true);
        desk.good(&format!("plugin pull {} --output first", registry.reference(":1")));
        desk.good("plugin sign file:first --key key.pem");
        if keeps_lists {
            next.keep_lists();
        }
        // What is listed there already stays.
        let theirs = next.keep(&artifact, &stated(&pem, &artifact, "https://slsa.dev/provenance/v1"));
        next.list(&artifact, std::slice::from_ref(&theirs), keeps_lists);
        for _ in 0..2 {
            desk.good(&format!("plugin push {} --from first", next.reference(":1")));
        }
        let listed = next.listed(&artifact, keeps_lists);
        assert_eq!((listed.len(), &listed[0]), (2, &theirs), "{listed:?}");
        assert_eq!(listed[1]["artifactType"], "application/vnd.dev.sigstore.bundle.v0.3+json");
        // Readers of the older form find that alone under its tag.
        let signatures = next.manifest(&format!("{}.sig", artifact.replace(':', "-")));
        assert_eq!(signatures["layers"].as_array().unwrap().len(), 1, "{signatures}");
        let said = desk.good(&format!("plugin pull {} --output taken", next.reference(":1")));
        assert!(said.contains(&desk.key) && desk.good("check tidegate.toml").contains("is good"), "{said}");
        // One that answers with nothing, and does not say that it keeps a list, is given one under the tag.
        let empty = Registry::start(Door::Open);
        empty.list(&artifact, &[], true);
        for _ in 0..2 {
            desk.good(&format!("plugin push {} --from first", empty.reference(":1")));
        }
        assert_eq!(empty.listed(&artifact, false).len(), 1);
        desk.good(&format!("plugin pull {} --output taken", empty.reference(":1")));
        assert!(desk.good("check tidegate.toml").contains("is good"));
        // Nobody's list is written over.
        other.spoil(&artifact);
        desk.refused(&format!("plugin push {} --from first", other.reference(":1")), &["is no OCI index"]);
        assert!(!other.tags().contains(&"1".to_owned()));
    }
}

#[test]
fn what_others_keep_under_the_tag_of_signatures_stays() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let tag = format!("{}.sig", desk.artifact().replace(':', "-"));
    let mut theirs = registry.manifest(&tag);
    theirs["annotations"] = serde_json::json!({"theirs": "of all"});
    theirs["layers"][0]["annotations"]["dev.sigstore.cosign/certificate"] = "theirs".into();
    let mut strange = theirs["config"].clone();
    strange["mediaType"] = "text/x".into();
    theirs["layers"].as_array_mut().unwrap().push(strange);
    registry.put(&tag, &theirs);
    desk.good("plugin key new second.pem");
    desk.good(&format!("plugin sign {} --key second.pem", registry.reference(":1")));
    let signed = registry.manifest(&tag);
    assert_eq!(signed["annotations"], theirs["annotations"]);
    assert_eq!(signed["layers"].as_array().unwrap()[..2], theirs["layers"].as_array().unwrap()[..]);
    assert_eq!(signed["layers"].as_array().unwrap().len(), 3, "{signed}");
    // What is read travels on as it was found.
    let next = Registry::start(Door::Open);
    desk.good(&format!("plugin pull {} --output taken", registry.reference(":1")));
    desk.good(&format!("plugin push {} --from taken", next.reference(":1")));
    let there = next.manifest(&tag);
    assert_eq!(there["layers"][0], theirs["layers"][0], "{there}");
    assert_eq!(there["layers"].as_array().unwrap().len(), 2, "{there}");
}
