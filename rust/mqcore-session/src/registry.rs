//! The registry of protocols: to add one, write its codec in `mqcore-wire`, its folder beside this file, and a line here.

/// Expands `$expand` over all protocols: the variant in [`Protocol`](crate::any::Protocol), the module, and the type that
/// implements [`ProtocolFactory`](crate::protocol::ProtocolFactory).
macro_rules! registered {
    ($expand:ident $($before:tt)*) => {
        $expand! {
            $($before)*
            Tmqp = tmqp::TmqpProtocol,
            Throttr = throttr::ThrottrProtocol,
            Mqks = mqks::MqksProtocol,
            MicroMessage = micromessage::MicroMessageProtocol,
            Eventmq = eventmq::EventmqProtocol,
        }
    };
}

pub(crate) use registered;
