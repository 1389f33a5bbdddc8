//! Packing, signing, pinning: what an author publishes and an operator takes, by the program itself. Registries are in
//! `registry/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder of its own to work in.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `tidegate ARGS` here; gives success and everything it said.
    fn run(&self, args: &str) -> (bool, String) {
        self.run_with(&std::env::temp_dir().join("tidegate-tests-cache"), args)
    }

    /// The same, with a cache in a folder.
    fn run_with(&self, cache: &Path, args: &str) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(&self.0).args(args.split_whitespace());
        command.env("XDG_CACHE_HOME", cache);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
    }

    fn good(&self, args: &str) -> String {
        let (good, said) = self.run(args);
        assert!(good, "{args}: {said}");
        said
    }

    fn refused(&self, args: &str, parts: &[&str]) {
        let (good, said) = self.run(args);
        assert!(!good, "{args}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in what {args} said:\n{said}"));
    }

    /// Puts a shipped component here.
    fn component(&self, shipped: &str, name: &str) {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist");
        std::fs::copy(dist.join(format!("{shipped}.wasm")), self.path(name)).unwrap();
    }

    fn config(&self, stage: &str, plugins: &str) {
        let text = format!("[plugins]\n{plugins}\n[[pipeline.stage]]\nplugin = \"mine\"\n{stage}\n");
        std::fs::write(self.path("tidegate.toml"), text).unwrap();
    }

    /// A config of stages by name and file.
    fn stages(&self, stages: &[(&str, &str)]) {
        let stage =
            |(name, file): &(&str, &str)| format!("[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{file}\"\n");
        std::fs::write(self.path("tidegate.toml"), stages.iter().map(stage).collect::<String>()).unwrap();
    }

    fn key(&self, name: &str) -> String {
        self.good(&format!("plugin key new {name}")).trim().to_owned()
    }

    /// Every file below a folder.
    fn files(&self, folder: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.path(folder)];
        while let Some(next) = open.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    let name = path.strip_prefix(self.path(folder)).unwrap().display().to_string();
                    found.insert(name, std::fs::read(path).unwrap());
                }
            }
        }
        found
    }

    /// The largest blob of a packed plugin: its component.
    fn component_blob(&self, folder: &str) -> PathBuf {
        let blobs = std::fs::read_dir(self.path(folder).join("blobs/sha256")).unwrap();
        blobs.map(|blob| blob.unwrap().path()).max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap()
    }
}

/// What follows a word at the beginning of a line.
fn line<'a>(said: &'a str, word: &str) -> &'a str {
    said.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("no `{word}` in {said}")).trim()
}

#[test]
fn the_same_component_is_packed_and_signed_into_the_same_bytes() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.key("key.pem");
    let said = desk.good("plugin pack mine.wasm --sign key.pem");
    desk.good("plugin pack mine.wasm --sign key.pem --output again");
    assert_eq!(desk.files("mine.oci"), desk.files("again"));
    // What was packed before is replaced whole.
    desk.component("pii-guard", "mine.wasm");
    desk.good("plugin pack mine.wasm --output again");
    desk.component("template", "mine.wasm");
    desk.good("plugin pack mine.wasm --sign key.pem --output again");
    assert_eq!(desk.files("mine.oci"), desk.files("again"));

    let manifest = desk.path("mine.oci/blobs").join(line(&said, "artifact").replace(':', "/"));
    let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(manifest["layers"][0]["mediaType"], "application/wasm");
    assert_eq!(manifest["layers"][0]["digest"], line(&said, "component"));
    let config = manifest["config"]["digest"].as_str().unwrap().replace(':', "/");
    let config: Value =
        serde_json::from_slice(&std::fs::read(desk.path("mine.oci/blobs").join(config)).unwrap()).unwrap();
    assert_eq!((&config["architecture"], &config["os"]), (&"wasm".into(), &"wasip2".into()));
    assert_eq!(config["layerDigests"][0], manifest["layers"][0]["digest"]);
    assert_eq!(config["component"]["exports"][1], "tidegate:plugin/stream-guard@0.1.0");
    assert_eq!(config["tidegate"]["stages"], serde_json::json!(["stream-guard"]));
}

/// As of a user without a home, or with one that others may write to.
#[test]
fn tools_go_on_without_a_cache_that_cannot_be_used() {
    use std::os::unix::fs::PermissionsExt;
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    std::fs::write(desk.path("a-file"), "").unwrap();
    std::fs::create_dir_all(desk.path("shared/tidegate/plugins")).unwrap();
    std::fs::set_permissions(desk.path("shared/tidegate/plugins"), std::fs::Permissions::from_mode(0o777)).unwrap();
    for (cache, why) in [("a-file", "cannot be used"), ("shared", "may be written by others")] {
        let (good, said) = desk.run_with(&desk.path(cache), "plugin inspect mine.wasm");
        assert!(good && said.contains(why) && said.contains("XDG_CACHE_HOME"), "{said}");
        assert_eq!(said.matches("goes on without").count(), 1, "{said}");
    }
}

#[test]
fn what_is_packed_or_pulled_again_keeps_its_signatures() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    let signed = |by: &[&String]| {
        let said = desk.good("plugin inspect mine.oci");
        assert!(by.iter().all(|key| said.contains(*key)) && said.matches("signed by").count() == by.len(), "{said}");
    };
    let (first, second) = (desk.key("first.pem"), desk.key("second.pem"));
    desk.good("plugin pack mine.wasm --sign first.pem");
    desk.good("plugin push file:mirror --from mine.oci");
    desk.good("plugin pack mine.wasm");
    signed(&[&first]);
    desk.good("plugin sign mine.oci --key second.pem");
    desk.good("plugin pull file:mirror --output mine.oci");
    signed(&[&first, &second]);
    // Another component has been signed by nobody.
    desk.component("pii-guard", "mine.wasm");
    desk.good("plugin pack mine.wasm");
    assert!(!desk.good("plugin inspect mine.oci").contains(&first));
}

#[test]
fn commands_that_change_one_folder_at_once_all_do() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.good("plugin pack mine.wasm");
    let keys: Vec<String> = (0..6).map(|number| desk.key(&format!("{number}.pem"))).collect();
    std::thread::scope(|scope| {
        for number in 0..keys.len() {
            let desk = &desk;
            scope.spawn(move || {
                desk.good(&format!("plugin sign mine.oci --key {number}.pem"));
                desk.good(&format!("plugin push file:mirror:{number} --from mine.oci"));
            });
        }
    });
    let said = desk.good("plugin inspect mine.oci");
    assert!(keys.iter().all(|key| said.contains(&format!("signed by      {key}"))), "{said}");
    let said = desk.good("plugin inspect file:mirror");
    assert!(keys.iter().all(|key| said.contains(&format!("signed by      {key}"))), "{said}");
    let names = std::fs::read_to_string(desk.path("mirror/index.json")).unwrap();
    assert!((0..keys.len()).all(|number| names.contains(&format!("ref.name\":\"{number}\""))), "{names}");
    assert!(!desk.path("mirror/.held").exists());
}

/// What is shown, and refused, is what has changed since the lock that is replaced.
#[test]
fn a_lock_that_another_command_is_writing_is_waited_for() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.config("file = \"mine.wasm\"", "");
    desk.good("plugin lock tidegate.toml");
    let held = std::fs::File::create(desk.path(".tidegate.lock.held")).unwrap();
    held.lock().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(&desk.0).args(["plugin", "lock", "tidegate.toml"]);
    command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("waiting for another command, which holds .tidegate.lock.held"), "{said}");
    std::fs::remove_file(desk.path("tidegate.lock")).unwrap();
    drop(held);
    let Output { status, stdout, .. } = waiting.wait_with_output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert!(status.success() && said.starts_with("new      template"), "{said}");
    assert!(!desk.path(".tidegate.lock.held").exists());
}

#[test]
fn a_project_publishes_what_it_has_built_last() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("dist")).unwrap();
    std::fs::write(desk.path("plugin.js"), "").unwrap();
    std::fs::write(desk.path("plugin.toml"), "name = \"mine\"\nlang = \"js\"\n").unwrap();
    let age = |seconds| {
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds);
        std::fs::File::options().append(true).open(desk.path("dist/mine.wasm")).unwrap().set_modified(at).unwrap();
    };
    desk.component("template", "dist/mine.wasm");
    assert!(!desk.good("plugin pack .").contains("is newer"));
    desk.good("plugin push file:mirror");
    desk.component("pii-guard", "dist/mine.wasm");
    age(60);
    desk.refused("plugin push file:mirror", &["mine.oci holds another component", "mine.wasm", "plugin pack"]);
    let said = desk.good("plugin pack .");
    assert!(said.contains("plugin.js is newer than") && said.contains("plugin build"), "{said}");
    desk.good("plugin push file:mirror");
}

#[test]
fn a_folder_that_holds_something_else_is_left_alone() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    std::fs::create_dir(desk.path("other")).unwrap();
    std::fs::write(desk.path("other/letter.txt"), "dear").unwrap();
    desk.refused("plugin pack mine.wasm --output other", &["other is not empty"]);
    assert_eq!(desk.files("other").len(), 1);
}

/// A layout with an image, as other tools make them.
fn image(desk: &Desk, folder: &str) {
    let nothing = format!("sha256:{}", "0".repeat(64));
    let config =
        serde_json::json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": nothing, "size": 2});
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": []}).to_string();
    let digest = tidegate::artifact::digest::Digest::of(manifest.as_bytes());
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest.to_string(), "size": manifest.len(),
    }]});
    let folder = desk.path(folder);
    std::fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
    std::fs::write(folder.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
    std::fs::write(folder.join("blobs/sha256").join(digest.hex()), manifest).unwrap();
    std::fs::write(folder.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn a_folder_of_several_plugins_or_of_something_else_is_not_replaced() {
    let desk = Desk::new();
    for component in ["template", "pii-guard"] {
        desk.component(component, "mine.wasm");
        desk.good("plugin pack mine.wasm");
        desk.good("plugin push file:mirror --from mine.oci");
    }
    image(&desk, "image");
    let several = ["mirror holds more than one plugin", "`tidegate plugin push file:mirror`", "--output"];
    let other = ["image holds something else than a packed plugin", "--output", "0 layers"];
    for (folder, parts) in [("mirror", several), ("image", other)] {
        let before = desk.files(folder);
        desk.refused(&format!("plugin pack mine.wasm --output {folder}"), &parts);
        desk.refused(&format!("plugin pull ./mine.oci --output {folder}"), &parts);
        assert_eq!(desk.files(folder), before);
    }
}

#[test]
fn what_others_wrote_into_the_index_of_a_folder_is_in_nobodys_way_and_stays() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.key("key.pem");
    desk.good("plugin pack mine.wasm");
    let file = desk.path("mine.oci/index.json");
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&file).unwrap()).unwrap();
    let mut index = read();
    let strange = serde_json::json!({"mediaType": "text/x", "digest": "sha512:ab", "size": 1});
    index.as_object_mut().unwrap().remove("mediaType");
    index["annotations"]["by"] = "them".into();
    index["manifests"][0]["platform"] = serde_json::json!({"os": "wasip2", "architecture": "wasm"});
    index["manifests"].as_array_mut().unwrap().push(strange.clone());
    std::fs::write(&file, index.to_string()).unwrap();
    let artifact = line(&desk.good("plugin pack mine.wasm --output other"), "artifact").to_owned();
    desk.good("plugin sign mine.oci --key key.pem");
    desk.good("plugin push file:mine.oci:0.1.0 --from other");
    assert!(desk.good("plugin inspect mine.oci").contains(&artifact));
    let now = read();
    assert_eq!((now.get("mediaType"), &now["annotations"]), (None, &index["annotations"]));
    let all = now["manifests"].as_array().unwrap();
    assert!(all.len() == 3 && all.contains(&index["manifests"][0]) && all.contains(&strange), "{now}");
    let before = desk.files("mine.oci");
    desk.refused("plugin pack mine.wasm", &["mine.oci holds something else than a packed plugin"]);
    assert_eq!(desk.files("mine.oci"), before);
}

#[test]
fn only_what_a_trusted_key_has_signed_is_loaded() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    let (ours, theirs) = (desk.key("ours.pem"), desk.key("theirs.pem"));
    let trust = format!("trusted_keys = [\"{ours}\"]");

    desk.config("file = \"mine.wasm\"", &trust);
    desk.refused("check tidegate.toml", &["`mine` from mine.wasm", "bare component", "pack --sign KEY"]);

    desk.config("file = \"mine.oci\"", &trust);
    desk.good("plugin pack mine.wasm");
    desk.refused("check tidegate.toml", &["`mine` from mine.oci", "is not signed", &ours, "tidegate plugin sign"]);
    desk.good("plugin sign mine.oci --key theirs.pem");
    desk.refused("check tidegate.toml", &["`mine` from mine.oci", &format!("is signed by {theirs}"), "trusted_keys"]);
    desk.refused("plugin lock tidegate.toml", &[&format!("is signed by {theirs}")]);
    desk.good("plugin sign mine.oci --key ours.pem");
    assert!(desk.good("check tidegate.toml").contains("is good"));
    let said = desk.good("plugin inspect mine.oci");
    assert!(said.contains(&format!("signed by      {ours}")) && said.contains(&theirs), "{said}");

    // A signature of one artifact is none of another.
    let signatures = std::fs::read_to_string(desk.path("mine.oci/index.json")).unwrap();
    desk.component("pii-guard", "mine.wasm");
    let first = line(&said, "artifact").to_owned();
    let second = line(&desk.good("plugin pack mine.wasm --sign theirs.pem --output other"), "artifact").to_owned();
    for (name, bytes) in desk.files("mine.oci") {
        if name.starts_with("blobs") {
            std::fs::write(desk.path("other").join(name), bytes).unwrap();
        }
    }
    let signatures: Value = serde_json::from_str(&signatures).unwrap();
    let mut index: Value = serde_json::from_slice(&std::fs::read(desk.path("other/index.json")).unwrap()).unwrap();
    let mut moved = signatures["manifests"][1].clone();
    moved["annotations"]["org.opencontainers.image.ref.name"] = format!("{}.sig", second.replace(':', "-")).into();
    index["manifests"][1] = moved;
    std::fs::write(desk.path("other/index.json"), index.to_string()).unwrap();
    desk.config("file = \"other\"", &trust);
    desk.refused("check tidegate.toml", &["in the name of", "not that key's for this content"]);
    assert_ne!(first, second);
}

#[test]
fn a_changed_component_is_no_longer_what_was_packed() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.config("file = \"mine.oci\"", "");
    desk.good("plugin pack mine.wasm");
    desk.good("check tidegate.toml");
    let blob = desk.component_blob("mine.oci");
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    desk.refused("check tidegate.toml", &["mine.oci", "the component", "was changed"]);
    bytes.pop();
    std::fs::write(&blob, &bytes).unwrap();
    desk.refused("check tidegate.toml", &["it was cut or changed"]);
    std::fs::remove_file(&blob).unwrap();
    desk.refused("check tidegate.toml", &["cannot read"]);
}

/// The artifact of `plugin` with a config that hides a capability, every digest right.
fn hiding(desk: &Desk, plugin: &str, capability: &str) {
    desk.component(plugin, "mine.wasm");
    desk.good("plugin pack mine.wasm");
    let read = |digest: &Value| {
        let path = desk.path("mine.oci/blobs").join(digest.as_str().unwrap().replace(':', "/"));
        serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap()
    };
    let write = |value: &Value| {
        let bytes = value.to_string().into_bytes();
        let digest = tidegate::artifact::digest::Digest::of(&bytes);
        std::fs::write(desk.path("mine.oci/blobs/sha256").join(digest.hex()), &bytes).unwrap();
        (Value::from(digest.to_string()), Value::from(bytes.len()))
    };
    let mut index: Value = serde_json::from_slice(&std::fs::read(desk.path("mine.oci/index.json")).unwrap()).unwrap();
    let mut manifest = read(&index["manifests"][0]["digest"]);
    let mut config = read(&manifest["config"]["digest"]);
    assert!(config["tidegate"]["capabilities"].as_object_mut().unwrap().remove(capability).is_some());
    (manifest["config"]["digest"], manifest["config"]["size"]) = write(&config);
    (index["manifests"][0]["digest"], index["manifests"][0]["size"]) = write(&manifest);
    std::fs::write(desk.path("mine.oci/index.json"), index.to_string()).unwrap();
}

/// Nobody but the descriptor says that requests have secrets, which was not packed once: that is shown where it is asked for.
#[test]
fn a_config_that_says_nothing_of_secrets_without_an_import_is_taken_and_they_are_shown() {
    let desk = Desk::new();
    hiding(&desk, "webhook-guard", "secrets");
    desk.config("file = \"mine.oci\"", "");
    let shown = desk.good("plugin inspect mine.oci");
    assert!(shown.contains("needs a grant  secrets: "), "{shown}");
    let asked = desk.good("plugin lock tidegate.toml");
    assert!(asked.contains("+ grant secrets"), "{asked}");
}

#[test]
fn a_config_that_says_less_than_the_component_does_is_refused() {
    let desk = Desk::new();
    hiding(&desk, "folder-retriever", "kv");
    desk.config("file = \"mine.oci\"", "");
    for command in [
        "plugin inspect mine.oci",
        "plugin pull ./mine.oci --output taken",
        "plugin push file:mirror --from mine.oci",
        "plugin lock tidegate.toml",
    ] {
        desk.refused(command, &["says another `capabilities` than its component"]);
    }
}

#[test]
fn plugins_travel_between_folders_with_their_signatures() {
    let desk = Desk::new();
    let key = desk.key("key.pem");
    desk.component("template", "mine.wasm");
    let first = line(&desk.good("plugin pack mine.wasm --sign key.pem"), "artifact").to_owned();
    assert!(desk.good("plugin push file:mirror --from mine.oci").contains(&first));
    desk.component("pii-guard", "mine.wasm");
    let second = line(&desk.good("plugin pack mine.wasm"), "artifact").to_owned();
    desk.good("plugin push file:mirror:second --from mine.oci");

    desk.refused("plugin pull file:mirror", &["more than one plugin", &first, "second"]);
    let remedy = "into a folder of its own (`tidegate plugin pull file:DIR:TAG --output FOLDER`)";
    desk.refused("plugin push file:other --from mirror", &["more than one plugin", remedy]);
    desk.config("file = \"mirror\"", "");
    desk.refused("plugin lock tidegate.toml", &["more than one plugin", remedy]);
    let said = desk.good(&format!("plugin pull file:mirror@{first} --output taken"));
    assert!(said.contains(&first) && said.contains(&format!("signed by      {key}")), "{said}");
    let said = desk.good("plugin pull file:mirror:second --output taken");
    assert!(said.contains(&second) && said.contains("signed by      nobody"), "{said}");
    let nowhere = format!("sha256:{}", "0".repeat(64));
    desk.refused(&format!("plugin pull file:mirror@{nowhere}"), &["there is no", &nowhere]);
    desk.refused(&format!("plugin push file:mirror@{first} --from mine.oci"), &["push to a tag"]);
}

/// A folder keeps what a registry would: every plugin of a version, and what was there before it was built anew.
#[test]
fn what_is_pushed_into_a_folder_takes_nothing_from_it() {
    let desk = Desk::new();
    let push = |component: &str, reference: &str| {
        desk.component(component, "mine.wasm");
        let digest = line(&desk.good("plugin pack mine.wasm"), "artifact").to_owned();
        let said = desk.good(&format!("plugin push {reference} --from mine.oci"));
        assert!(said.contains(&digest), "{said}");
        digest
    };
    let pulled = |which: &str, digest: &str| {
        let said = desk.good(&format!("plugin pull file:mirror{which} --output taken"));
        assert!(said.contains(digest), "{which}: {said}");
    };
    // Two plugins of one version, neither with a tag.
    let (first, second) = (push("template", "file:mirror"), push("pii-guard", "file:mirror"));
    pulled(":template-0.1.0", &first);
    pulled(":pii-guard-0.1.0", &second);
    // A tag moves: what had it is there by its digest, and signed it stays.
    let third = push("injection-guard", "file:mirror:template-0.1.0");
    desk.key("key.pem");
    desk.good(&format!("plugin sign file:mirror@{first} --key key.pem"));
    pulled(":template-0.1.0", &third);
    pulled(&format!("@{first}"), &first);
    pulled(&format!("@{second}"), &second);
    // The same again is one still.
    push("injection-guard", "file:mirror:template-0.1.0");
    push("template", "file:mirror:again");
    let index = std::fs::read_to_string(desk.path("mirror/index.json")).unwrap();
    assert_eq!([&first, &second, &third].map(|digest| index.matches(digest.as_str()).count()), [1, 1, 1], "{index}");
    desk.refused("plugin pull file:mirror", &["more than one plugin", &first, "again", "pii-guard-0.1.0"]);
    // A folder in which only the newest has a tag needs none.
    push("template", "file:single:stable");
    let newest = push("pii-guard", "file:single:stable");
    let said = desk.good("plugin pull file:single --output taken");
    assert!(said.contains(&newest), "{said}");
    // Nor does one whose only plugin has two.
    push("pii-guard", "file:twice:0.1");
    push("pii-guard", "file:twice:stable");
    let said = desk.good("plugin pull file:twice --output taken");
    assert!(said.contains(&newest), "{said}");
}

#[test]
fn a_lock_holds_however_the_config_is_named_and_its_files_are_written() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    std::fs::create_dir(desk.path("sub")).unwrap();
    let whole = |name: &str| desk.path(name).display().to_string();
    let absolute = whole("mine.wasm");
    for (file, source) in [("./mine.wasm", "mine.wasm"), (absolute.as_str(), absolute.as_str())] {
        desk.config(&format!("file = \"{file}\""), "");
        for config in ["tidegate.toml", "./tidegate.toml", "sub/../tidegate.toml", &whole("tidegate.toml")] {
            desk.good(&format!("plugin lock {config}"));
            let locked = std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
            assert!(locked.contains(&format!("source = \"{source}\"")), "{config}: {locked}");
            assert!(desk.good(&format!("check {config}")).contains("is good"));
        }
    }
}

/// The server then finds compiled what was looked at, and needs no folder of whoever locks.
#[test]
fn a_lock_is_made_with_the_cache_that_the_config_names() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    let text = "cache_dir = \"cache\"\n[[pipeline.stage]]\nplugin = \"mine\"\nfile = \"mine.wasm\"\n";
    std::fs::write(desk.path("tidegate.toml"), text).unwrap();
    desk.good("plugin lock tidegate.toml");
    let cached = desk.files("cache/plugins");
    assert!(cached.keys().any(|name| name.ends_with(".cwasm")), "{:?}", cached.keys());
}

/// What is where it was has not moved: what takes its name is new.
#[test]
fn a_stage_that_takes_the_name_of_another_hides_nothing_that_it_asks_for() {
    let desk = Desk::new();
    desk.component("folder-retriever", "a.wasm");
    desk.component("folder-retriever", "b.wasm");
    desk.config("file = \"a.wasm\"", "");
    desk.good("plugin lock tidegate.toml");
    desk.config("file = \"b.wasm\"\n[[pipeline.stage]]\nplugin = \"other\"\nfile = \"a.wasm\"", "");
    let said = desk.good("plugin lock tidegate.toml");
    assert!(said.contains("new      folder-retriever") && said.contains("+ grant kv"), "{said}");
    assert!(said.contains("same     folder-retriever") && !said.contains("moved"), "{said}");
}

#[test]
fn a_lock_pins_and_an_upgrade_shows_what_more_it_asks_for() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.config("file = \"mine.wasm\"\nstages = [\"stream-guard\"]", "");
    let said = desk.good("plugin lock tidegate.toml");
    assert!(said.contains("new      template") && said.contains("tidegate.lock: 1 plugin\n"), "{said}");
    assert!(said.contains("+ stage stream-guard"), "{said}");
    let locked = std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    assert!(locked.contains("source = \"mine.wasm\""), "{locked}");
    desk.good("check tidegate.toml");

    let before = tidegate::artifact::digest::Digest::of(&std::fs::read(desk.path("mine.wasm")).unwrap()).to_string();
    desk.component("folder-retriever", "mine.wasm");
    let after = tidegate::artifact::digest::Digest::of(&std::fs::read(desk.path("mine.wasm")).unwrap()).to_string();
    let remedy = "run `tidegate plugin lock --upgrade tidegate.toml`";
    desk.refused("check tidegate.toml", &["`mine` from mine.wasm", &before, &after, remedy]);
    desk.refused("plugin lock tidegate.toml", &["changed  folder-retriever", "--upgrade"]);
    let more =
        ["+ grant documents", "+ grant kv", "+ stage retriever", "+ no longer guards as stream-guard", "--allow-more"];
    desk.refused("plugin lock tidegate.toml --upgrade", &more);
    assert_eq!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap(), locked);
    desk.good("plugin lock tidegate.toml --upgrade --allow-more");
    assert!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap().contains(&after));

    // What asks for no more is taken by an upgrade alone; another plugin, or one that guards less, is not.
    desk.component("word-guard", "mine.wasm");
    desk.good("plugin lock tidegate.toml --upgrade --allow-more");
    desk.component("pii-guard", "mine.wasm");
    desk.refused("plugin lock tidegate.toml --upgrade", &["+ another plugin: word-guard -> pii-guard", "--allow-more"]);
    desk.good("plugin lock tidegate.toml --upgrade --allow-more");
    let mut built_again = std::fs::read(desk.path("mine.wasm")).unwrap();
    // A section of notes, which nothing reads.
    built_again.extend([0, 5, 4, b'n', b'o', b't', b'e']);
    std::fs::write(desk.path("mine.wasm"), built_again).unwrap();
    desk.refused("plugin lock tidegate.toml", &["changed  pii-guard", "--upgrade"]);
    desk.good("plugin lock tidegate.toml --upgrade");
    desk.component("injection-guard", "mine.wasm");
    desk.refused("plugin lock tidegate.toml --upgrade", &["+ no longer guards as stream-guard", "--allow-more"]);
    desk.good("plugin lock tidegate.toml --upgrade --allow-more");
    desk.config("file = \"mine.wasm\"", "");
    desk.good("check tidegate.toml");

    // What is not in the lock is not loaded.
    std::fs::rename(desk.path("mine.wasm"), desk.path("other.wasm")).unwrap();
    desk.config("file = \"other.wasm\"", "");
    desk.refused(
        "check tidegate.toml",
        &["`other.wasm` is not in tidegate.lock", "tidegate plugin lock tidegate.toml"],
    );
    let said = desk.good("plugin lock tidegate.toml");
    assert!(said.contains("gone     mine.wasm") && said.contains("moved    injection-guard"), "{said}");
    desk.good("check tidegate.toml");
}

#[test]
fn a_lock_that_is_missing_is_told_and_is_an_error_where_the_config_wants_one() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    let unpinned = "ARE NOT PINNED: there is no tidegate.lock; `tidegate plugin lock tidegate.toml` makes it";
    desk.config("file = \"mine.wasm\"", "");
    assert!(desk.good("check tidegate.toml").contains(unpinned));
    desk.good("plugin lock tidegate.toml");
    assert!(!desk.good("check tidegate.toml").contains("PINNED"));
    desk.config("file = \"mine.wasm\"", "locked = true");
    desk.good("check tidegate.toml");
    std::fs::remove_file(desk.path("tidegate.lock")).unwrap();
    let wanted =
        ["plugins.locked is set, and there is no tidegate.lock", "`tidegate plugin lock tidegate.toml` makes it"];
    desk.refused("check tidegate.toml", &wanted);
    desk.good("plugin lock tidegate.toml");
    desk.good("check tidegate.toml");
    // What the program carries needs none.
    let shipped = "[plugins]\nlocked = true\n[[pipeline.stage]]\nplugin = \"pii-guard\"\n";
    std::fs::write(desk.path("shipped.toml"), shipped).unwrap();
    assert!(!desk.good("check shipped.toml").contains("PINNED"));
}

/// Who names another file or tag upgrades as well.
#[test]
fn what_asks_for_more_is_refused_under_another_name_too() {
    let desk = Desk::new();
    desk.component("template", "mine-1.wasm");
    desk.config("file = \"mine-1.wasm\"", "");
    desk.good("plugin lock tidegate.toml");
    let locked = std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    desk.component("folder-retriever", "mine-2.wasm");
    desk.config("file = \"mine-2.wasm\"", "");
    let more = ["moved    folder-retriever", "from mine-1.wasm", "+ grant kv", "+ stage retriever", "--allow-more"];
    desk.refused("plugin lock tidegate.toml", &more);
    desk.refused("plugin lock tidegate.toml --upgrade", &more);
    assert_eq!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap(), locked);
    desk.good("plugin lock tidegate.toml --allow-more");
    assert!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap().contains("source = \"mine-2.wasm\""));
}

/// Nobody knows which of them was which: one that asks for more than any of those that are gone asks for more.
#[test]
fn of_several_stages_of_one_name_that_move_none_gets_what_another_had() {
    let desk = Desk::new();
    let two = |first: &str, second: &str| desk.stages(&[("mine", first), ("mine", second)]);
    desk.component("webhook-guard", "a-1.wasm");
    desk.component("word-guard", "b-1.wasm");
    two("a-1.wasm", "b-1.wasm");
    desk.good("plugin lock tidegate.toml");
    let locked = std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    desk.component("webhook-guard", "a-2.wasm");
    desk.component("webhook-guard", "b-2.wasm");
    two("a-2.wasm", "b-2.wasm");
    desk.refused("plugin lock tidegate.toml", &["from b-1.wasm", "+ grant http", "+ grant secrets", "--allow-more"]);
    assert_eq!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap(), locked);
    desk.good("plugin lock tidegate.toml --allow-more");
}

#[test]
fn of_stages_that_share_a_file_each_is_known_when_it_moves() {
    let desk = Desk::new();
    desk.component("word-guard", "a.wasm");
    desk.component("word-guard", "a-2.wasm");
    desk.component("webhook-guard", "b.wasm");
    let more = ["from a.wasm", "+ grant http", "+ grant secrets", "--allow-more"];
    desk.stages(&[("one", "a.wasm"), ("two", "a.wasm")]);
    desk.good("plugin lock tidegate.toml");
    let locked = std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    desk.stages(&[("one", "a-2.wasm"), ("two", "b.wasm")]);
    desk.refused("plugin lock tidegate.toml", &more);
    // Also where the other one stays.
    desk.stages(&[("one", "a.wasm"), ("two", "b.wasm")]);
    desk.refused("plugin lock tidegate.toml", &more);
    assert_eq!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap(), locked);
    desk.good("plugin lock tidegate.toml --allow-more");
    // Or where it goes to what another one has been allowed.
    desk.stages(&[("one", "b.wasm"), ("two", "b.wasm")]);
    desk.refused("plugin lock tidegate.toml", &more);
    desk.good("plugin lock tidegate.toml --allow-more");
    assert!(desk.good("plugin lock tidegate.toml").contains("same     webhook-guard"));
}

#[test]
fn a_packed_plugin_that_lost_its_signer_asks_for_more() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    let key = desk.key("key.pem");
    desk.config("file = \"mine.oci\"", "");
    desk.good("plugin pack mine.wasm --sign key.pem");
    desk.good("plugin lock tidegate.toml");
    assert!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap().contains(&key));
    std::fs::remove_dir_all(desk.path("mine.oci")).unwrap();
    desk.good("plugin pack mine.wasm");
    desk.refused("plugin lock tidegate.toml", &[&format!("+ no longer signed by {key}"), "--allow-more"]);
}

#[test]
fn keys_and_references_that_cannot_be_are_refused() {
    let desk = Desk::new();
    desk.component("template", "mine.wasm");
    desk.key("key.pem");
    desk.refused("plugin key new key.pem", &["never overwritten"]);
    desk.refused("plugin pack mine.wasm --sign mine.wasm", &["mine.wasm"]);
    desk.refused("plugin pack mine.wasm --sign nothing.pem", &["cannot read the key", "tidegate plugin key new FILE"]);
    desk.config("", "trusted_keys = [\"ed25519:12\"]");
    desk.refused("check tidegate.toml", &["`ed25519:12` is no public key", "tidegate plugin key show FILE"]);
    desk.config("source = \"file:mirror\"", "");
    desk.refused("check tidegate.toml", &["`source` is for registries", "`file`"]);
    desk.config("source = \"oci://localhost:1/mine:1\"\nfile = \"mine.wasm\"", "");
    desk.refused("check tidegate.toml", &["both `file` and `source`"]);
    desk.config("source = \"oci://localhost:1/mine:1\"", "");
    desk.refused("check tidegate.toml", &["is not locked", "tidegate plugin lock tidegate.toml"]);
    desk.refused("plugin pull hush", &["`oci://HOST/REPOSITORY:TAG`"]);
    desk.refused("plugin pull oci://localhost:1/hush", &["neither a tag nor a digest"]);
}
