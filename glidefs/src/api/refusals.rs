//! The refusals of each operation, as the description of the API lists them.
//!
//! Owns which codes an operation may answer with, and where refusals stand in the description. Does not own the codes (`wire`) nor when a
//! request is refused. Invariant: every operation has the codes of its parts: access, path, query, body. The tests of the API compare
//! every answer with the description.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{
    Content, Header, ObjectBuilder, OpenApi, PathItem, Ref, RefOr, Response, ResponseBuilder,
};

use super::wire::{PROBLEM_TYPE, ProblemCode as P};

/// Codes that any operation may answer with: those of access, and that of failures of the daemon.
const ACCESS: &[P] = &[P::Unauthorized, P::Forbidden, P::WrongHost, P::Internal];
/// Codes of operations on a name in the path.
const NAME: &[P] = &[P::BadName, P::BadRequest];
/// Codes of operations that read a body.
const BODY: &[P] = &[P::BadRequest, P::Timeout, P::TooLarge];
/// Codes of operations that make an export.
const NEW: &[P] = &[
    P::BadName,
    P::BadSize,
    P::BadParameter,
    P::ExistsWithOtherParameters,
    P::TooManyExports,
    P::IdsExhausted,
];
/// Codes of operations that change an export.
const CHANGE: &[P] =
    &[P::NotFound, P::Stopping, P::Catalog, P::HalfDeleted, P::HalfRolledBack, P::TooManyUnderWay];
/// Codes of operations that make, change or remove a device.
const DEVICE: &[P] = &[
    P::DeviceFailed,
    P::DeviceLimitReached,
    P::DeviceTimedOut,
    P::KernelTooOld,
    P::NoDriver,
    P::NoPermission,
];
/// Codes of operations that read the store.
const STORE: &[P] =
    &[P::NoStore, P::NotInStore, P::StoreFailed, P::StoreUnavailable, P::Damaged, P::TooManyUnderWay];
/// Codes of operations on an export's volume in the store.
const VOLUME: &[P] = &[
    P::ExistsInStore,
    P::Held,
    P::Fenced,
    P::Diverged,
    P::Unconfirmed,
    P::NotFlushed,
    P::FlushFailed,
    P::BadSize,
];

/// The codes of an operation besides those of access, name, query and body. `None` for an operation that is not listed here, which a test
/// refuses.
pub(super) fn own_codes(operation: &str) -> Option<Vec<&'static [P]>> {
    Some(match operation {
        "create_export" | "attach_export" => vec![NEW, CHANGE, DEVICE, STORE, VOLUME, &[P::SnapshotGone]],
        "open_export" | "undelete_export" | "fork_export" => {
            let lost: &[P] =
                &[P::NotLost, P::Replaced, P::NotDetached, P::Conflict, P::InUse, P::SnapshotGone];
            vec![NEW, CHANGE, DEVICE, STORE, VOLUME, lost]
        }
        "delete_export" | "detach_export" => vec![CHANGE, DEVICE, STORE, VOLUME, &[P::InUse]],
        "resize_export" => vec![CHANGE, DEVICE, STORE, VOLUME, &[P::CannotShrink]],
        "set_export" => vec![CHANGE, &[P::BadParameter]],
        "flush_export" => vec![CHANGE, STORE, VOLUME],
        "drain" => vec![&[P::TooManyUnderWay]],
        "roll_back_export" => {
            vec![CHANGE, STORE, VOLUME, &[P::NotDetached, P::SnapshotGone, P::Replaced, P::InUse]]
        }
        "create_snapshot" => vec![CHANGE, STORE, VOLUME, &[P::SnapshotExists]],
        "delete_snapshot" => vec![CHANGE, STORE, VOLUME, &[P::SnapshotNeeded]],
        "list_snapshots" => vec![STORE, &[P::NotFound, P::Fenced, P::Diverged, P::BadParameter]],
        "list_stored_exports" | "list_deleted_exports" | "collect_garbage" => {
            vec![STORE, &[P::BadParameter]]
        }
        "list_exports" => vec![&[P::BadParameter]],
        "show_export" | "metrics" | "show_problem" => vec![&[P::NotFound]],
        "trace" => vec![&[P::NotFound, P::BadParameter, P::TooManyTraces]],
        "upgrade" => vec![&[P::NotReady, P::UpgradeUnderWay, P::UpgradeFailed, P::StoreUnavailable]],
        "readyz" => vec![&[P::NotReady, P::Unconfirmed, P::CatalogFails]],
        "status" | "top" | "memory" | "healthz" | "openapi" | "list_problems" | "page_html" | "page_css"
        | "page_js" | "table_js" | "charts_js" | "numbers_js" => Vec::new(),
        _ => return None,
    })
}

/// Adds the refusals of every operation to the description.
pub(super) fn describe(api: &mut OpenApi) {
    for item in api.paths.paths.values_mut() {
        for operation in operations(item) {
            let mut by_status: BTreeMap<u16, Vec<P>> = BTreeMap::new();
            for code in codes(operation) {
                for status in code.statuses() {
                    by_status.entry(*status).or_default().push(code);
                }
            }
            for (status, codes) in by_status {
                operation.responses.responses.insert(status.to_string(), RefOr::T(response(&codes)));
            }
        }
    }
}

/// All codes of an operation, in the order of their names.
fn codes(operation: &Operation) -> Vec<P> {
    let mut groups = own_codes(operation.operation_id.as_deref().unwrap_or_default()).unwrap_or_default();
    groups.push(ACCESS);
    let parameters = operation.parameters.iter().flatten();
    for parameter in parameters {
        let RefOr::T(parameter) = parameter else { continue };
        match parameter.parameter_in {
            // The code of a refusal is no name: any other text is not found.
            ParameterIn::Path if parameter.name == "code" => groups.push(&[P::BadRequest]),
            ParameterIn::Path => groups.push(NAME),
            _ => groups.push(&[P::BadRequest]),
        }
    }
    if operation.request_body.is_some() {
        groups.push(BODY);
    }
    let mut codes = groups.concat();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn response(codes: &[P]) -> Response {
    let sentences: Vec<String> =
        codes.iter().map(|code| format!("`{}`: {}", code.as_str(), code.title())).collect();
    let mut response = ResponseBuilder::new()
        .description(sentences.join(" "))
        .content(PROBLEM_TYPE, Content::new(Some(Ref::from_schema_name("Problem"))));
    if codes.iter().any(|code| code.has_retry_after()) {
        let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer));
        header.description = Some("Seconds until the request may be sent again.".into());
        response = response.header("Retry-After", header);
    }
    response.build()
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().filter_map(Option::as_mut)
}
