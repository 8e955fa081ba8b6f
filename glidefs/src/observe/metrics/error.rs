//! Why a scrape fails.

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A source gave a number for a histogram, a histogram for a number, or one with other buckets.
    #[error("a sample of {name} is not of the kind that the table of metrics says: this is a bug of glidefs")]
    Kind {
        /// The metric.
        name: &'static str,
    },
    /// A source gave too few or too many label values.
    #[error(
        "a sample of {name} has {given} labels, the table of metrics says {expected:?}: this is a bug of glidefs"
    )]
    Labels {
        /// The metric.
        name: &'static str,
        /// The labels it has.
        expected: &'static [&'static str],
        /// How many values were given.
        given: usize,
    },
    /// The text could not be written.
    #[error("{name} could not be written as text")]
    Encode {
        /// The metric.
        name: &'static str,
        /// The cause.
        #[source]
        source: prometheus::Error,
    },
}
