use super::*;
use crate::artifact::key::PrivateKey;
use crate::artifact::manifest::{COMPONENT_TYPE, CONFIG_TYPE, TAG};

/// One that nobody could run.
fn artifact(component: &str) -> Artifact {
    let component = component.as_bytes().to_vec();
    let layer = Descriptor::of(COMPONENT_TYPE, &component);
    let config = format!("{{\"layerDigests\":[\"{}\"]}}", layer.digest).into_bytes();
    let manifest = Manifest::new(Descriptor::of(CONFIG_TYPE, &config), vec![layer]).bytes().unwrap();
    Artifact { manifest, config, component, claims: None, signatures: Vec::new() }
}

fn signature(artifact: &Artifact) -> Signature {
    let folder = tempfile::tempdir().unwrap();
    Signature::new(&PrivateKey::make(&folder.path().join("key.pem")).unwrap(), &artifact.digest(), "a").unwrap()
}

/// Whoever watches the folder looks at its index alone.
#[test]
fn what_is_made_whole_again_changes_the_index_and_what_is_whole_does_not() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (layout, first) = (Layout::open_or_make(&folder.path().join("mirror")).unwrap(), artifact("first"));
    let new = signature(&first);
    layout.add(&first, "1", &[]).unwrap();
    layout.sign(&first, new.clone()).unwrap();
    let index = Layout::index_file(&layout.folder);
    for (blob, is_signature) in [(&first.component, false), (&first.manifest, false), (&new.payload, true)] {
        let again = || match is_signature {
            true => layout.sign(&first, new.clone()).unwrap(),
            false => layout.add(&first, "1", &[]).unwrap(),
        };
        // A number that is open is not given anew.
        let before = std::fs::File::open(&index).unwrap();
        let is_as_before = || before.metadata().unwrap().ino() == std::fs::metadata(&index).unwrap().ino();
        again();
        assert!(is_as_before());
        std::fs::write(layout.blob_file(&Digest::of(blob)), "damaged").unwrap();
        again();
        assert!(!is_as_before());
        assert_eq!(std::fs::read(layout.blob_file(&Digest::of(blob))).unwrap(), *blob);
    }
}

#[test]
fn who_reads_while_what_is_there_is_replaced_has_one_or_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_make(&folder.path().join("packed")).unwrap();
    let both = ["first", "second"]
        .map(artifact)
        .map(|artifact| Artifact { signatures: vec![signature(&artifact)], ..artifact });
    layout.replace(&both[0], "1", &[]).unwrap();
    let digests = both.each_ref().map(Artifact::digest);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| (0..200).for_each(|n| layout.replace(&both[n % 2], "1", &[]).unwrap()));
        while !replacing.is_finished() {
            let read = layout.read(None, None).unwrap();
            assert!(digests.contains(&read.digest()));
            assert_eq!(read.signatures.len(), 1);
        }
    });
}

#[test]
fn those_who_add_and_sign_at_once_lose_nothing_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("mirror");
    let first = artifact("first");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (folder, first) = (&folder, &first);
            scope.spawn(move || {
                let layout = Layout::open_or_make(folder).unwrap();
                layout.add(&artifact(&number.to_string()), &format!("tag-{number}"), &[]).unwrap();
                layout.add(first, "first", &[]).unwrap();
                layout.sign(first, signature(first)).unwrap();
            });
        }
    });
    let layout = Layout::open(&folder).unwrap();
    let index = layout.index().unwrap();
    assert_eq!(index.artifacts().count(), 9);
    assert_eq!(layout.signatures(&index, &first.digest()).len(), 8);
    assert!(!folder.join(HELD).exists());
}

#[test]
fn a_store_full_of_signatures_takes_those_of_known_keys_that_an_artifact_brings() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_make(folder.path()).unwrap();
    let of_many = |count: usize| (0..count).map(|_| signature(&artifact("a"))).collect::<Vec<_>>();
    let (worthless, trusted) = (of_many(32), of_many(1));
    let known = signature::verify(&trusted, &artifact("a").digest(), &[]).good;
    let with = |signatures: &[Signature]| Artifact { signatures: signatures.to_vec(), ..artifact("a") };
    layout.add(&with(&worthless), "a", &known).unwrap();
    layout.add(&with(&[&worthless[1..], &trusted[..]].concat()), "a", &known).unwrap();
    let kept = layout.read(Some("a"), None).unwrap().signatures;
    assert!(kept.len() == 32 && kept.contains(&trusted[0]), "{}", kept.len());
    layout.add(&with(&worthless[..1]), "a", &[]).unwrap();
    layout.replace(&with(&trusted), "a", &known).unwrap();
    let kept = layout.read(Some("a"), None).unwrap().signatures;
    assert_eq!((kept.len(), &kept[0]), (32, &trusted[0]));
    let refused = layout.sign(&artifact("a"), signature(&artifact("a"))).unwrap_err().to_string();
    assert!(refused.contains("more than 32 signatures"), "{refused}");
}

/// Anybody's may lie beside an artifact where it is from, and what is gone here is not had again.
#[test]
fn a_signature_that_is_there_stays_whatever_an_artifact_brings() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_make(folder.path()).unwrap();
    let trusted = signature(&artifact("a"));
    let with = |signatures: Vec<Signature>| Artifact { signatures, ..artifact("a") };
    layout.replace(&with(vec![trusted.clone()]), "a", &[]).unwrap();
    for _ in 0..2 {
        let worthless = (0..32).map(|_| signature(&artifact("a"))).collect();
        layout.replace(&with(worthless), "a", &[]).unwrap();
        let kept = layout.read(Some("a"), None).unwrap().signatures;
        assert_eq!((kept.len(), &kept[0]), (32, &trusted));
    }
}

#[test]
fn what_is_no_blob_by_its_name_is_not_removed_and_nothing_where_a_link_leads() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let layout = Layout::open_or_make(folder.path()).unwrap();
    let blobs = folder.path().join(BLOBS);
    layout.replace(&artifact("first"), "1", &[]).unwrap();
    let first = artifact("first").digest();
    let names = ["id_ed25519".to_owned(), format!("{}.bak", first.hex()), first.hex().to_uppercase()];
    for name in names.iter().map(String::as_str).chain([".1-0.tmp"]) {
        std::fs::write(blobs.join(name), "theirs").unwrap();
    }
    layout.replace(&artifact("second"), "1", &[]).unwrap();
    assert!(names.iter().all(|name| blobs.join(name).exists()));
    assert!(!blobs.join(".1-0.tmp").exists() && !blobs.join(first.hex()).exists());
    for part in [BLOBS, "blobs"] {
        let (part, there) = (folder.path().join(part), outside.path().join(part.replace('/', "-")));
        std::fs::rename(&part, &there).unwrap();
        std::os::unix::fs::symlink(&there, &part).unwrap();
        let index = std::fs::read(Layout::index_file(folder.path())).unwrap();
        let refused = layout.replace(&artifact("third"), "1", &[]).unwrap_err().to_string();
        assert!(refused.contains(&format!("{} is a symbolic link", part.display())), "{refused}");
        assert_eq!(std::fs::read(Layout::index_file(folder.path())).unwrap(), index);
        assert!(layout.read(None, None).is_ok(), "what is there can be read");
        std::fs::remove_file(&part).unwrap();
        std::fs::rename(&there, &part).unwrap();
    }
}

#[test]
fn a_folder_whose_making_broke_off_is_finished_and_no_other_is_begun() {
    let check = |files: &[(&str, &str)], is_taken: bool| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for (name, text) in files {
            std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            std::fs::write(folder.join(name), text).unwrap();
        }
        let made = Layout::open_or_make(folder);
        assert_eq!(made.is_ok(), is_taken, "{files:?}");
        match made {
            Ok(layout) => layout.add(&artifact("a"), "a", &[]).unwrap(),
            Err(refused) => assert!(refused.to_string().contains("is not empty and holds"), "{refused}"),
        }
    };
    let index = "{\"schemaVersion\":2,\"manifests\":[]}";
    check(&[], true);
    check(&[("blobs/sha256/.1-0.tmp", "x")], true);
    check(&[("blobs/sha256/.1-0.tmp", ""), (".1-0.tmp", "{\"sch"), (".1.tmp", ""), (HELD, "")], true);
    check(&[(INDEX, index), (".1-0.tmp", "{\"imageLa")], true);
    check(&[(INDEX, "{\"name\": \"of somebody\"}")], false);
    check(&[(INDEX, index), ("letter.txt", "dear")], false);
    check(&[(".env", "")], false);
}

#[test]
fn an_index_that_could_not_be_read_again_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_make(folder.path()).unwrap();
    let of = |count: usize| {
        let one = |n: usize| Descriptor::of(MANIFEST_TYPE, &n.to_le_bytes()).with(TAG, "x".repeat(1 << 10));
        let mut index = Index::default();
        index.manifests.extend((0..count).map(one));
        index
    };
    layout.write_index(&of(4096), false).unwrap();
    assert_eq!(layout.index().unwrap().manifests.len(), 4096);
    let refused = layout.write_index(&of(16 << 10), false).unwrap_err().to_string();
    assert!(refused.contains("index.json would have") && refused.contains("at most 16777216"), "{refused}");
    assert_eq!(layout.index().unwrap().manifests.len(), 4096, "the old one is still there");
    std::fs::write(Layout::index_file(folder.path()), vec![b' '; (16 << 20) + 1]).unwrap();
    let refused = layout.index().map(drop).unwrap_err().to_string();
    assert!(refused.contains("index.json has more than 16777216 bytes"), "{refused}");
}
