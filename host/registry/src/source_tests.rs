//! Every form of a source, and what is none.
use super::*;

fn check(text: &str, canonical: &str, id: &str) {
    let source = Source::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(source.to_string(), canonical, "{text}");
    assert_eq!(source.default_id(), id, "{text}");
    let again = Source::parse(canonical).unwrap();
    assert_eq!(again.to_string(), canonical, "what is written can be read");
}

#[test]
fn every_form_of_a_source_is_read() {
    check("/m/x.gguf", "/m/x.gguf", "x");
    let here = std::env::current_dir().unwrap();
    check("./x.gguf", &here.join("x.gguf").to_string_lossy(), "x");
    check("models/x.gguf", &here.join("models/x.gguf").to_string_lossy(), "x");
    check("/m/x-00002-of-00003.gguf", "/m/x-00001-of-00003.gguf", "x");
    check("https://h/a/x.gguf?k=v", "https://h/a/x.gguf?k=v", "x");
    check("https://h/a%20b/x%20y-00003-of-00003.gguf", "https://h/a%20b/x%20y-00001-of-00003.gguf", "x y");
    check("hf:org/repo/x.gguf", "hf:org/repo/x.gguf", "x");
    check("hf:org/repo/x.gguf@main", "hf:org/repo/x.gguf", "x");
    check("hf:org/repo/a/b/x-00002-of-00002.gguf@refs/pr/1", "hf:org/repo/a/b/x-00001-of-00002.gguf@refs/pr/1", "x");
    check("ollama:llama3", "ollama:llama3:latest", "llama3");
    check("ollama:library/llama3:8b", "ollama:llama3:8b", "llama3");
    check("ollama:me/llama3:8b-q4_0", "ollama:me/llama3:8b-q4_0", "llama3");
    check("registry.example.org/library/llama3:8b", "registry.example.org/library/llama3:8b", "llama3");
    check("127.0.0.1:5000/a/b:c", "127.0.0.1:5000/a/b:c", "b");
}

#[test]
fn a_path_is_told_from_what_has_to_be_pulled() {
    for path in ["x.gguf", "models/x.gguf", "./hf:x", "/a:b/c:d", "../a.b/c/d:e", "my.dir/x.gguf", "demo", "./http://x"]
    {
        assert!(!Source::is_remote(path), "{path}");
    }
    for remote in
        ["hf:a/b/c", "hf:", "ollama:x", "https://h/x", "http://h/x", "h.org/a/b:c", "localhost/a/b:c", "ftp://x"]
    {
        assert!(Source::is_remote(remote), "{remote}");
    }
}

#[test]
fn a_url_may_carry_its_digest() {
    let digest = Digest::of(b"x");
    let Source::Url { url, sha256 } = Source::parse(&format!("https://h/x.gguf#sha256={digest}")).unwrap() else {
        panic!("a URL")
    };
    assert_eq!((url.as_str(), sha256), ("https://h/x.gguf", Some(digest)));
    for bad in ["https://h/x.gguf#", "https://h/x.gguf#sha256=", "https://h/x.gguf#sha256=12", "https://h/x.gguf#md5=1"]
    {
        assert!(Source::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn hostile_sources_are_refused_and_cut_in_the_message() {
    let two_megabytes = "a".repeat(2 << 20);
    for bad in [
        "",
        "/",
        "..",
        "hf:",
        "hf:org",
        "hf:org/repo",
        "hf:org/repo/",
        "hf:org/repo/../x.gguf",
        "hf:org/../x/y.gguf",
        "hf:../../x/y.gguf",
        "hf:org/repo/x.gguf@",
        "hf:org/repo/x.gguf@../..",
        "hf:org/repo/x.gguf@a b",
        "hf:org/repo/a//x.gguf",
        "hf:org/repo/.x",
        "hf:org/repo/x\n.gguf",
        "hf:org/repo/x-00001-of-99999.gguf",
        "https://h/",
        "https://h/..%2f..%2fetc",
        "https://h/x%00.gguf",
        "https://u:p@h/x.gguf",
        "ftp://h/x.gguf",
        "ollama:",
        "ollama:../x:y",
        "ollama:a/b/c:d",
        "ollama:x:../../y",
        "h.org/../b:c",
        "h.org/a/b/c:d",
        "h.org@evil.org/a/b:c",
        "h.org/a/b:",
        &two_megabytes,
        &format!("hf:org/repo/{two_megabytes}"),
        &format!("https://h/{two_megabytes}"),
    ] {
        let error = Source::parse(bad).expect_err(bad.get(..40).unwrap_or(bad)).to_string();
        assert!(error.len() < 600, "{error:.700}");
    }
    let longest = format!("/{}/x", "a/".repeat(2046));
    assert_eq!(longest.len(), 4095);
    assert!(Source::parse(&longest).is_ok() && Source::parse(&format!("/a{longest}")).is_err());
}

#[test]
fn a_name_has_1_to_256_characters() {
    assert!(check_name(&"é".repeat(256)).is_ok() && check_name("a/b: c").is_ok());
    for bad in ["", "a\nb", &"é".repeat(257)] {
        assert!(check_name(bad).is_err());
    }
}
