//! URLs and settings of object stores, without any request.

use std::collections::BTreeMap;

use mqcore_lake::store::{Store, without_credentials};

fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_kind_of_store_opens_by_its_url() {
    let s3 =
        [("aws_region", "eu-central-1"), ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"), ("allow_http", "true")];
    let azure = [("azure_storage_account_name", "account"), ("azure_storage_account_key", "a2V5")];
    let google = [("google_skip_signature", "true")];
    for (url, settings) in [
        ("s3://bucket/a/b", &s3[..]),
        ("s3a://bucket/a/b", &s3[..]),
        ("gs://bucket/a/b", &google[..]),
        ("az://container/a/b", &azure[..]),
        ("abfss://container@account.dfs.core.windows.net/a/b", &azure[1..]),
        ("file:///var/lib/lake", &[][..]),
    ] {
        let store = Store::open(url, &options(settings), &BTreeMap::new())
            .unwrap_or_else(|error| panic!("{url}: {error}"));
        let location = store.location("messages/metadata/v1.metadata.json");
        assert_eq!(location, format!("{url}/messages/metadata/v1.metadata.json"));
        assert_eq!(store.name(&location), Some("messages/metadata/v1.metadata.json"));
        assert_eq!(store.name("s3://elsewhere/messages/x"), None);
    }
    let store = Store::open("s3://bucket/a/b/", &options(&s3), &BTreeMap::new())
        .expect("a slash at the end changes nothing");
    assert_eq!(store.location("x"), "s3://bucket/a/b/x");
    assert_eq!(store.path("x").expect("a valid name").as_ref(), "a/b/x");
    let store = Store::open("s3://bucket", &options(&s3), &BTreeMap::new()).expect("a whole bucket");
    assert_eq!(store.path("x").expect("a valid name").as_ref(), "x");
}

#[test]
fn urls_of_other_programs_name_the_same_objects() {
    let s3 = options(&[("aws_region", "eu-central-1")]);
    for (url, location, name) in [
        ("s3://bucket/a", "s3a://bucket/a/messages/x", Some("messages/x")),
        ("s3a://bucket/a", "s3://bucket/a/messages/x", Some("messages/x")),
        ("s3://bucket/a", "s3://bucket/ab/messages/x", None),
        ("s3://bucket/a", "s3://other/a/messages/x", None),
        ("file:///lake", "file:/lake/messages/x", Some("messages/x")),
        ("file:///lake", "file:///lake/messages/x", Some("messages/x")),
        ("file:///lake", "s3:///lake/messages/x", None),
    ] {
        let store = Store::open(url, &s3, &BTreeMap::new()).expect("it is valid");
        assert_eq!(store.name(location), name, "{location} in {url}");
    }
}

#[test]
fn wrong_urls_and_options_say_what_would_be_right() {
    let refused = |url: &str, settings: &[(&str, &str)]| {
        Store::open(url, &options(settings), &BTreeMap::new()).expect_err("it is wrong").to_string()
    };
    assert!(refused("bucket/a", &[]).contains("relative URL without a base"));
    assert!(refused("ftp://host/a", &[]).contains("use s3, s3a, gs, az, abfss or file"));
    assert!(refused("s3://bucket/a", &[("colour", "blue")]).contains(r#"the option "colour" is unknown"#));
    assert!(refused("s3://bucket/a", &[("aws_conditional_put", "maybe")]).contains("maybe"));
}

#[test]
fn urls_without_credentials_have_no_secret_parameters_either() {
    for (url, open) in [
        ("postgresql://h/d?password=s3cret", "postgresql://h/d"),
        (
            "postgresql://h/d?user=u&PassWord=s3cret&sslmode=require",
            "postgresql://h/d?user=u&sslmode=require",
        ),
        ("postgresql://u:s3cret@h/d?sslkey=s3cret", "postgresql://h/d"),
        ("https://h/catalog?access_token=s3cret#part", "https://h/catalog#part"),
        ("sqlite:///var/lib/catalog.db?mode=rwc", "sqlite:///var/lib/catalog.db?mode=rwc"),
        ("no URL", "no URL"),
    ] {
        assert_eq!(without_credentials(url), open);
    }
}
