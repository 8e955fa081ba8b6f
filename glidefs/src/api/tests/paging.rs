//! Lists by pages.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Answer, Served};

/// The address of the next page.
fn next(answer: &Answer) -> Option<&str> {
    let link = answer.head.lines().find_map(|line| line.strip_prefix("link: "))?;
    let (address, relation) = link.strip_prefix('<').unwrap().split_once('>').unwrap();
    assert_eq!(relation, "; rel=\"next\"");
    Some(address)
}

fn names(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let exports = answer.json();
    exports.as_array().unwrap().iter().map(|export| export["name"].as_str().unwrap().to_owned()).collect()
}

async fn created(served: &Served, names: &[&str]) {
    for name in names {
        assert_eq!(served.create(name, "1MiB").await.status, 201);
    }
}

#[tokio::test]
async fn without_a_limit_everything_is_answered_and_with_one_as_many_and_the_way_to_the_rest() {
    let served = Served::new().await;
    created(&served, &["c", "a", "b-1", "b", "b.1"]).await;
    let all = served.send("GET", "/v1/exports", "").await;
    assert_eq!((names(&all), next(&all)), (["a", "b", "b-1", "b.1", "c"].map(Into::into).to_vec(), None));
    for (limit, next_page) in [(1, Some("b")), (2, Some("b-1")), (4, Some("c")), (5, None), (1000, None)] {
        let page = served.send("GET", &format!("/v1/exports?limit={limit}"), "").await;
        assert_eq!(names(&page).len(), limit.min(5));
        let Some(next_page) = next_page else {
            assert_eq!(next(&page), None, "{limit}");
            continue;
        };
        let address = next(&page).unwrap();
        assert!(address.starts_with(&format!("/v1/exports?limit={limit}&after=")), "{address}");
        assert_eq!(names(&served.send("GET", address, "").await)[0], next_page);
    }
    assert_eq!(
        names(&served.send("GET", "/v1/exports?after=b.0", "").await),
        ["b.1", "c"],
        "a name that never was"
    );
    assert_eq!(names(&served.send("GET", "/v1/exports?limit=1&after=zzz", "").await), [""; 0]);
}

#[tokio::test]
async fn exports_that_stay_are_listed_once_while_others_come_and_go_between_pages() {
    let served = Served::new().await;
    let stay = ["b", "d", "f", "h", "j"];
    created(&served, &stay).await;
    created(&served, &["c", "e"]).await;
    // Changes between pages: the last export of the page before goes, exports come before and behind the place.
    let mut changes = [("c", "a"), ("e", "g"), ("a", "e"), ("g", "i")].into_iter();
    let (mut seen, mut address) = (Vec::new(), Some("/v1/exports?limit=2".to_owned()));
    while let Some(this) = address {
        let page = served.send("GET", &this, "").await;
        seen.extend(names(&page));
        address = next(&page).map(Into::into);
        if let Some((gone, come)) = changes.next() {
            assert_eq!(served.send("DELETE", &format!("/v1/exports/{gone}"), "").await.status, 200);
            created(&served, &[come]).await;
        }
    }
    let seen_stay: Vec<_> = seen.iter().filter(|name| stay.contains(&name.as_str())).collect();
    assert_eq!(seen_stay, stay.iter().collect::<Vec<_>>(), "of {seen:?}");
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len(), "{seen:?}");
}

#[tokio::test]
async fn a_limit_out_of_bounds_is_refused_on_every_list() {
    let served = Served::new().await;
    served.create("a", "1MiB").await;
    for list in ["/v1/exports", "/v1/exports/a/snapshots", "/v1/store/exports", "/v1/store/deleted"] {
        for (limit, code) in
            [("0", "bad_parameter"), ("1001", "bad_parameter"), ("-1", "bad_request"), ("x", "bad_request")]
        {
            let refusal = served.send("GET", &format!("{list}?limit={limit}"), "").await.refusal();
            assert_eq!((refusal.0, refusal.1.as_str()), (400, code), "{list} {limit}");
        }
    }
    let refusal = served.send("GET", "/v1/exports?limt=1", "").await.refusal();
    assert_eq!((refusal.0, refusal.1.as_str()), (400, "bad_request"), "a misspelled limit is not everything");
    assert_eq!(served.send("GET", "/v1/exports?limit=1", "").await.json()[0]["name"], json!("a"));
}
