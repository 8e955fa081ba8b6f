//! Arguments that name many exports: several names, names on standard input, a number of exports.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read};

use clap::Args;

use crate::router::{ExportName, NameError};

/// Most exports of a name with `--count`.
pub(super) const COUNT_MAX: i64 = 100_000;

/// Why it is not known which exports are meant.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum NamesError {
    /// A line of standard input is no name of an export, or a name has no room for a number.
    #[error("{name:?} is no name of an export")]
    BadName {
        name: String,
        #[source]
        source: NameError,
    },
    /// Standard input could not be read.
    #[error("cannot read standard input")]
    Input(#[source] io::Error),
}

/// Names of exports.
#[derive(Debug, Args)]
pub(in crate::cli) struct BulkNames {
    /// Name of the export; several may be given, and `-` reads names from standard input, one a line
    #[arg(value_name = "NAME", value_parser = name_or_input, required = true)]
    pub names: Vec<NameOrInput>,
}

/// A name, or the names on standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum NameOrInput {
    Name(ExportName),
    Input,
}

fn name_or_input(text: &str) -> Result<NameOrInput, NameError> {
    if text == "-" { Ok(NameOrInput::Input) } else { ExportName::new(text).map(NameOrInput::Name) }
}

/// The exports that a command is about.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Chosen {
    /// The names of the exports, without repetitions.
    pub names: Vec<ExportName>,
    /// Whether there is one export, named by the one argument.
    pub is_one: bool,
}

impl BulkNames {
    /// The exports meant. `input` is read if a name is `-`.
    ///
    /// # Errors
    /// [`NamesError::BadName`] for a line of `input` that is no name.
    pub fn choose(self, input: impl Read) -> Result<Chosen, NamesError> {
        if let [NameOrInput::Name(name)] = &self.names[..] {
            return Ok(Chosen { names: vec![name.clone()], is_one: true });
        }
        let (mut chosen, mut input) = (Vec::new(), Some(input));
        for name in self.names {
            match (name, &mut input) {
                (NameOrInput::Name(name), _) => chosen.push(name),
                (NameOrInput::Input, input) => {
                    if let Some(input) = input.take() {
                        read_names(input, &mut chosen)?;
                    }
                }
            }
        }
        let mut seen = HashSet::new();
        chosen.retain(|name| seen.insert(name.clone()));
        Ok(Chosen { names: chosen, is_one: false })
    }
}

impl Chosen {
    /// The same, or with a `count` the numbered names of each name.
    ///
    /// # Errors
    /// [`NamesError::BadName`] for a name that is too long with a number.
    pub fn numbered(self, count: Option<u32>) -> Result<Self, NamesError> {
        let Some(count) = count else { return Ok(self) };
        let numbered =
            self.names.iter().flat_map(|base| (1..=count).map(move |number| format!("{base}-{number}")));
        let names = numbered.map(|name| to_name(&name)).collect::<Result<_, _>>()?;
        Ok(Self { names, is_one: false })
    }
}

fn read_names(input: impl Read, names: &mut Vec<ExportName>) -> Result<(), NamesError> {
    for line in BufReader::new(input).lines() {
        let line = line.map_err(NamesError::Input)?;
        if !line.trim().is_empty() {
            names.push(to_name(line.trim())?);
        }
    }
    Ok(())
}

fn to_name(text: &str) -> Result<ExportName, NamesError> {
    ExportName::new(text).map_err(|source| NamesError::BadName { name: text.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> BulkNames {
        BulkNames { names: texts.iter().map(|text| name_or_input(text).unwrap()).collect() }
    }

    fn many(texts: &[&str]) -> Chosen {
        let names = texts.iter().map(|text| ExportName::new(text).unwrap()).collect();
        Chosen { names, is_one: false }
    }

    #[test]
    fn names_come_from_arguments_and_from_standard_input_each_once() {
        let input = "b\n\n  c  \nd\nb\n";
        assert_eq!(
            names(&["a", "-", "d", "e", "-"]).choose(input.as_bytes()).unwrap(),
            many(&["a", "b", "c", "d", "e"])
        );
        assert_eq!(names(&["-"]).choose("only\n".as_bytes()).unwrap(), many(&["only"]));
        assert_eq!(names(&["-"]).choose("".as_bytes()).unwrap(), many(&[]));
        assert_eq!(
            names(&["a"]).choose(input.as_bytes()).unwrap(),
            Chosen { is_one: true, ..many(&["a"]) },
            "input is not read"
        );
        let refused = names(&["-"]).choose("a\n../b\n".as_bytes()).unwrap_err();
        assert!(refused.to_string().contains("../b"), "{refused}");
    }

    #[test]
    fn a_count_makes_numbered_names_and_a_larger_count_the_same_and_more() {
        let count = |count, texts: &[&str]| names(texts).choose("".as_bytes()).unwrap().numbered(Some(count));
        assert_eq!(count(1, &["vm"]).unwrap(), many(&["vm-1"]));
        assert_eq!(count(2, &["vm", "db"]).unwrap(), many(&["vm-1", "vm-2", "db-1", "db-2"]));
        let ten = count(10, &["vm"]).unwrap().names;
        assert_eq!((ten[0].as_str(), ten[9].as_str()), ("vm-1", "vm-10"));
        let long = "x".repeat(128);
        assert!(count(1, &[&long]).is_err(), "there is no room for a number");
    }
}
