//! Connections, logins and TLS.

use mqcore_session::any::Protocol;
use mqcore_tls::refusal::HandshakeRejection;

use super::{Metric, MetricSources, Samples, counter, gauge};
use crate::stats::counter::Counter;
use crate::stats::counters::{CloseReason, ProtocolCounters};

pub(super) const METRICS: &[Metric] = &[
    gauge(
        "mqcore_connections",
        "Open connections; half-open ones have not introduced themselves.",
        |source, samples| {
            for protocol in Protocol::ALL {
                let (open, half_open) = source.hub.registry.count(protocol);
                for (state, count) in [("client", open.saturating_sub(half_open)), ("half-open", half_open)] {
                    samples.sample(&[("protocol", &protocol.as_str()), ("state", &state)], count);
                }
            }
        },
    ),
    gauge(
        "mqcore_unfinished_input_bytes",
        "Bytes of unfinished input: all of half-open connections, frames from 32 KiB on of clients.",
        |source, samples| {
            let input = &source.hub.input;
            samples.labeled("state", "client", input.clients.held());
            samples.labeled("state", "half-open", input.half_open.held());
        },
    ),
    counter(
        "mqcore_connections_closed_total",
        "Connections that the broker closed, by reason.",
        |source, samples| {
            for protocol in Protocol::ALL {
                for reason in CloseReason::ALL {
                    let count = source.hub.counters.of(protocol).closed(reason).get();
                    samples.sample(&[("protocol", &protocol.as_str()), ("reason", &reason.as_str())], count);
                }
            }
        },
    ),
    counter("mqcore_connections_accepted_total", "Accepted connections.", |source, samples| {
        each_protocol(source, samples, |counters| &counters.accepted);
    }),
    counter(
        "mqcore_connections_rejected_total",
        "Connections rejected because connections_max was reached.",
        |source, samples| {
            each_protocol(source, samples, |counters| &counters.rejected);
        },
    ),
    counter(
        "mqcore_frames_ignored_total",
        "Frames of closed connections that were ignored: without hops left, or of an unknown type.",
        |source, samples| {
            each_protocol(source, samples, |counters| &counters.ignored_frames);
        },
    ),
    counter(
        "mqcore_requests_failed_total",
        "Failed requests of protocols whose answer is only a number; mqcore errors lists the latest.",
        |source, samples| {
            each_protocol(source, samples, |counters| &counters.request_errors);
        },
    ),
    counter("mqcore_received_bytes_total", "Bytes read from clients.", |source, samples| {
        each_protocol(source, samples, |counters| &counters.bytes_in);
    }),
    counter("mqcore_sent_bytes_total", "Bytes written to clients.", |source, samples| {
        each_protocol(source, samples, |counters| &counters.bytes_out);
    }),
    counter("mqcore_logins_total", "Login attempts, by verdict.", |source, samples| {
        let counters = &source.hub.authority.counters;
        samples.labeled("verdict", "allowed", counters.logins.get());
        samples.labeled("verdict", "denied", counters.logins_refused.get());
    }),
    counter(
        "mqcore_actions_denied_total",
        "Requests denied because the client lacks the permission.",
        |source, samples| samples.value(source.hub.authority.counters.actions_denied.get()),
    ),
    counter(
        "mqcore_connections_revoked_total",
        "Connections closed because their user, token or rights changed.",
        |source, samples| samples.value(source.hub.authority.counters.revoked.get()),
    ),
    counter(
        "mqcore_audit_lines_lost_total",
        "Audit lines that were dropped because the disk was too slow.",
        |source, samples| samples.value(source.hub.authority.audit_lost()),
    ),
];

/// Present if there is an encrypted listener.
pub(super) const TLS: &[Metric] = &[
    gauge(
        "mqcore_tls_certificate_expiry_seconds",
        "Seconds until the certificate of a listener expires; negative if it has expired.",
        |source, samples| {
            for certificate in source.hub.tls.certificates() {
                samples.labeled("listener", &certificate.url, certificate.expires_in);
            }
        },
    ),
    gauge("mqcore_tls_handshakes", "TLS handshakes in progress.", |source, samples| {
        samples.value(source.hub.tls.handshakes.count())
    }),
    counter("mqcore_tls_handshakes_total", "Completed TLS handshakes, by kind.", |source, samples| {
        let counters = &source.hub.tls.counters;
        samples.labeled("kind", "full", counters.full.get());
        samples.labeled("kind", "resumed", counters.resumed.get());
    }),
    counter("mqcore_tls_handshakes_failed_total", "Failed TLS handshakes, by reason.", |source, samples| {
        for reason in HandshakeRejection::ALL {
            samples.labeled("reason", reason.as_str(), source.hub.tls.counters.refused(reason).get());
        }
    }),
    counter("mqcore_tls_reloads_total", "Reloads of certificates, by outcome.", |source, samples| {
        let counters = &source.hub.tls.counters;
        samples.labeled("outcome", "done", counters.reloads.get());
        samples.labeled("outcome", "failed", counters.reloads_failed.get());
    }),
];

fn each_protocol(
    source: &MetricSources,
    samples: &mut Samples<'_>,
    value: fn(&ProtocolCounters) -> &Counter,
) {
    for protocol in Protocol::ALL {
        samples.labeled("protocol", protocol.as_str(), value(source.hub.counters.of(protocol)).get());
    }
}
