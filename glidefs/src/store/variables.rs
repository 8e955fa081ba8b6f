//! Environment variables with which a store is reached.
//!
//! Owns the type and the look-up. Does not own the meaning of a variable.

/// Names and values of environment variables. A store heeds `AWS_…`, `GOOGLE_…`, `AZURE_…` and `HOME`.
pub type Variables = Vec<(String, String)>;

/// The variables of this process.
pub fn process_variables() -> Variables {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// The value of the variable `name`; an empty value counts as none.
pub(super) fn variable<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    let found = variables.iter().find(|(found, value)| found == name && !value.is_empty());
    found.map(|(_, value)| value.as_str())
}
