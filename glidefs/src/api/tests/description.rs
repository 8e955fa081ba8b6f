//! The description of the API: whether it is complete, and whether it is true. Every answer in the tests of the API is compared with the
//! description.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{Answer, Served};
use crate::api::body::{BODY_BYTES_MAX, BODY_TIME_MAX};
use crate::api::wire::{PROBLEM_TYPE, ProblemCode};
use crate::api::{page, routes};
use crate::router::NAME_CHARS_MAX;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::to_value(routes::description()).unwrap());

/// Every operation: the method in capitals, the path and the description.
fn operations() -> impl Iterator<Item = (String, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, item)| {
        let operations = item.as_object().unwrap().iter();
        operations.map(move |(method, operation)| (method.to_uppercase(), path.as_str(), operation))
    })
}

/// The operation which a request asks for.
fn operation(method: &str, target: &str) -> Option<&'static Value> {
    let path = target.split('?').next().unwrap();
    let matches = |template: &str| {
        let (path, template): (Vec<_>, Vec<_>) = (path.split('/').collect(), template.split('/').collect());
        path.len() == template.len()
            && path
                .iter()
                .zip(&template)
                .all(|(part, template)| template.starts_with('{') || part == template)
    };
    operations()
        .filter(|(of, template, _)| method == of && matches(template))
        // A fixed path comes before one with variable parts.
        .min_by_key(|(_, template, _)| template.matches('{').count())
        .map(|(_, _, operation)| operation)
}

/// What is wrong with `value` by `schema`, a schema of the description.
fn errors(schema: &Value, value: &Value) -> Vec<String> {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let validator = Arc::clone(VALIDATORS.lock().unwrap().entry(schema.to_string()).or_insert_with(|| {
        let mut schema = schema.clone();
        schema["components"] = DOCUMENT["components"].clone();
        schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        Arc::new(jsonschema::validator_for(&schema).unwrap())
    }));
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Compares an answer with the description: status, content type and content.
pub(super) fn check(request: &str, answer: &Answer) {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    // The connection may have been cut, on purpose.
    if answer.status == 0 || method == "HEAD" {
        return;
    }
    let asked = format!("{method} {target} {}: {} {}", answer.status, answer.head, answer.body);
    let content_type = answer.head.lines().find_map(|line| line.strip_prefix("content-type: "));
    let content_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    if answer.status >= 400 {
        assert_eq!(content_type, PROBLEM_TYPE, "{asked}");
        let problem = answer.json();
        assert_eq!(errors(&schema("Problem"), &problem), [""; 0], "{asked}");
        let code = ProblemCode::of(problem["code"].as_str().unwrap()).unwrap();
        let status = u16::try_from(problem["status"].as_u64().unwrap()).unwrap();
        assert!(status == answer.status && code.statuses().contains(&status), "{asked}");
        assert_eq!(
            (&problem["type"], &problem["title"]),
            (&json!(format!("/v1/problems/{}", code.as_str())), &json!(code.title())),
            "{asked}"
        );
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{asked}");
    }
    let Some(operation) = operation(method, target) else {
        let is_page = page::has_file(target.split('?').next().unwrap());
        return assert!(is_page || answer.status >= 400, "nothing describes {asked}");
    };
    let described = operation["responses"].get(answer.status.to_string());
    let described = described.unwrap_or_else(|| panic!("the status is not described of {asked}"));
    let Some(content) = described.get("content") else { return assert_eq!(answer.body, "", "{asked}") };
    let schema = &content.get(content_type).unwrap_or_else(|| panic!("the type is not described of {asked}"))
        ["schema"];
    match content_type {
        "application/x-ndjson" => {
            for line in answer.body.lines().filter(|line| line.starts_with('{')) {
                assert_eq!(errors(schema, &serde_json::from_str(line).unwrap()), [""; 0], "{line}");
            }
        }
        _ if content_type.ends_with("json") => assert_eq!(errors(schema, &answer.json()), [""; 0], "{asked}"),
        _ => {}
    }
}

/// Calls `visit` with every object in `value`.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            visit(object);
            object.values().for_each(|value| walk(value, visit));
        }
        Value::Array(values) => values.iter().for_each(|value| walk(value, visit)),
        _ => {}
    }
}

#[test]
fn every_operation_has_an_id_a_summary_and_problems_and_every_reference_leads_somewhere() {
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations() {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{method} {path}: the id is used twice"
        );
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
        let responses = operation["responses"].as_object().unwrap();
        let is_success = |status: &&String| status.starts_with('2');
        assert!(responses.keys().any(|status| is_success(&status)), "{method} {path}");
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "4") {
            assert!(status.parse::<u16>().is_ok(), "{method} {path}: {status}");
            assert_eq!(
                response["content"][PROBLEM_TYPE]["schema"],
                schema("Problem"),
                "{method} {path}: {status}"
            );
        }
        assert!(responses.contains_key("401"), "{method} {path}");
        let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
        let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
        assert_eq!(in_path, path.matches('{').count(), "{method} {path}");
        for parameter in parameters {
            assert!(!parameter["description"].as_str().unwrap().is_empty(), "{method} {path}: {parameter}");
        }
    }
    let mut references = 0;
    walk(&DOCUMENT, &mut |object| {
        let Some(Value::String(reference)) = object.get("$ref") else { return };
        references += 1;
        let found = DOCUMENT.pointer(reference.strip_prefix('#').unwrap());
        assert!(found.is_some(), "{reference} leads nowhere");
    });
    assert!(references > 100, "only {references} references were seen");
}

#[test]
fn the_description_says_who_made_it_where_the_daemon_is_and_how_the_token_is_sent() {
    assert_eq!(DOCUMENT["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(DOCUMENT["info"]["license"]["identifier"], env!("CARGO_PKG_LICENSE"));
    assert_eq!(DOCUMENT["servers"][0]["url"], "/");
    let token = &DOCUMENT["components"]["securitySchemes"]["token"];
    assert_eq!((&token["type"], &token["scheme"]), (&json!("http"), &json!("bearer")));
    assert_eq!(DOCUMENT["security"], json!([{}, {"token": []}]), "the Unix socket needs no token");
    let codes = DOCUMENT["components"]["schemas"]["ProblemCode"]["enum"].as_array().unwrap();
    let known: Vec<_> = ProblemCode::ALL.iter().map(|code| json!(code.as_str())).collect();
    assert_eq!(codes, &known);
}

#[test]
fn the_examples_of_requests_are_requests() {
    let mut examples = 0;
    for (name, described) in DOCUMENT["components"]["schemas"].as_object().unwrap() {
        if let Some(example) = described.get("example").filter(|example| example.is_object()) {
            examples += 1;
            assert_eq!(errors(&schema(name), example), [""; 0], "{name}");
        }
    }
    assert!(examples >= 9, "only {examples} examples");
}

#[test]
fn what_is_always_there_is_required_and_what_may_be_null_is_nullable() {
    let export = &DOCUMENT["components"]["schemas"]["Export"];
    let required: Vec<_> =
        export["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in ["name", "device", "reason", "durability", "weight"] {
        assert!(required.contains(&name), "{name}");
    }
    assert!(!required.contains(&"path"));
    assert_eq!(export["properties"]["device"]["type"], json!(["string", "null"]));
    assert_eq!(export["properties"]["path"]["type"], json!("string"));
    assert_eq!(export["properties"]["size_bytes"]["format"], "int64");
    assert_eq!(export["properties"]["created"]["format"], "date-time");
}

#[test]
fn the_numbers_in_the_table_of_codes_are_the_bounds_of_the_daemon() {
    for (code, says) in [
        (ProblemCode::TooLarge, format!("larger than {} KiB", BODY_BYTES_MAX >> 10)),
        (ProblemCode::Timeout, format!("not complete {} s after", BODY_TIME_MAX.as_secs())),
        (ProblemCode::BadName, format!(": {NAME_CHARS_MAX} characters at most")),
    ] {
        let text = format!("{} {}", code.title(), code.next_step());
        assert!(text.contains(&says), "{code:?} does not say {says:?}: {text}");
    }
}

/// Every route gets input of many wrong kinds. What refusals look like, [`check`] has looked at.
#[tokio::test]
async fn whatever_is_wrong_with_a_request_the_refusal_is_a_problem() {
    let served = Served::new().await;
    let (mut sent, mut refused) = (0, 0);
    for (method, template, operation) in operations() {
        let mut targets = Vec::new();
        for name in ["nope", "..", "%ff", "a%2Fb", "%00", "%F0%9F%98%80", &"x".repeat(200)] {
            let path = template.replace("{name}", name).replace("{snapshot}", name);
            targets.push(path.clone());
            for query in ["nonsense=1", "limit=0", "slower_than_nanoseconds=x", "force=2", "wait=", "%"] {
                targets.push(format!("{path}?{query}"));
            }
            if !template.contains('{') {
                break;
            }
        }
        let bodies: &[&str] = match operation.get("requestBody") {
            Some(_) => &[
                "",
                "not json",
                "[]",
                "{\"nonsense\": 1}",
                "{\"name\": 7, \"size\": []}",
                "\u{0}",
                "{\"size\": 1e999}",
            ],
            None => &[""],
        };
        for target in &targets {
            for body in bodies {
                let answer = served.send(&method, target, body).await;
                assert!(
                    answer.status != 0 && answer.status < 500 || answer.status == 503,
                    "{method} {target} {body}: {}",
                    answer.body
                );
                sent += 1;
                refused += u32::from(answer.status >= 400);
            }
        }
        // A method that the path does not have, with what it has instead.
        let answer = served.send("TRACE", &targets[0], "").await;
        assert_eq!(answer.refusal().1, "method_not_allowed", "{template}");
        assert!(answer.head.contains("\r\nallow: "), "{}", answer.head);
    }
    assert!(sent > 1000 && refused * 10 > sent * 8, "{refused} of {sent} were refused");
    assert!(served.router.list().is_empty());
}

#[tokio::test]
async fn the_description_is_served_as_it_is_printed() {
    let served = Served::new().await;
    for _ in 0..2 {
        let answer = served.send("GET", "/openapi.json", "").await;
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
        assert_eq!(answer.json(), *DOCUMENT);
    }
}

/// The generated client has no type for an answer with a status that is not described.
#[tokio::test]
async fn an_export_that_exists_is_the_answer_of_a_repeated_fork() {
    let served = Served::new().await;
    assert_eq!(served.create("a", "1MiB").await.status, 201);
    let answer = served.send("POST", "/v1/exports/b/fork", r#"{"name": "a"}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
