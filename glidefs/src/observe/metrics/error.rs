//! The errors of a scrape.

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A source gave a number for a histogram, a histogram for a number, or a histogram with other buckets.
    #[error("a sample of {name} is not of the kind that the table of metrics says: this is a bug of glidefs")]
    Kind {
        /// The name of the metric.
        name: &'static str,
    },
    /// A source gave too few or too many label values.
    #[error(
        "a sample of {name} has {given} labels, the table of metrics says {expected:?}: this is a bug of glidefs"
    )]
    Labels {
        /// The name of the metric.
        name: &'static str,
        /// The labels of the metric in the table.
        expected: &'static [&'static str],
        /// The number of label values given.
        given: usize,
    },
    /// The text could not be written.
    #[error("{name} could not be written as text")]
    Encode {
        /// The name of the metric.
        name: &'static str,
        /// The error of the encoder.
        #[source]
        source: prometheus::Error,
    },
}
