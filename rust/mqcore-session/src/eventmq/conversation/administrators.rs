//! Requests of administrators.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::rejection::Rejection;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::eventmq::{self, EmqpCommand};

use super::{EventmqSession, deny};
use crate::eventmq::pending::{AdminRequest, RequestSubject};

impl EventmqSession {
    /// Asks whether the peer may administer the broker. A right on a single object is not enough.
    pub(super) fn administrator_says(
        &mut self,
        message: &eventmq::EmqpMessage<'_>,
        commands: &mut Vec<Command>,
    ) -> Result<(), String> {
        let request = match message.command {
            EmqpCommand::Status => AdminRequest::Status,
            EmqpCommand::ShowWorkers => AdminRequest::ShowWorkers,
            EmqpCommand::ShowSchedulers => AdminRequest::ShowSchedulers,
            EmqpCommand::Disconnect => AdminRequest::Disconnect,
            _ => {
                self.ignore();
                return Ok(());
            }
        };
        let number = self.pending.expect(RequestSubject::Administer(request, message.id.into()), 1);
        commands.push(Command::Request(number, Box::new(Request::MayAdminister)));
        Ok(())
    }

    /// The broker has decided whether the peer may administer it.
    pub(super) fn administer(
        &mut self,
        request: AdminRequest,
        id: &[u8],
        answer: Result<Reply, Rejection>,
        now: Timestamp,
        output: &mut Vec<u8>,
    ) {
        if let Err(rejection) = answer {
            deny(&rejection, output);
            return self.fail(id, rejection.to_string(), now);
        }
        match request {
            AdminRequest::Status => self.ask_status(output),
            AdminRequest::ShowWorkers => {
                let text = self.exchange.show_workers();
                self.reply(text.as_bytes(), None, output);
            }
            AdminRequest::ShowSchedulers => {
                let text = self.exchange.show_schedulers();
                self.reply(text.as_bytes(), None, output);
            }
            AdminRequest::Disconnect => {
                eventmq::EmqpMessage { id: self.ids.next(), command: EmqpCommand::Ack(id) }.encode(output);
                self.stops_broker = true;
            }
        }
    }

    /// Asks each queue with statistics how much waits in it.
    fn ask_status(&mut self, output: &mut Vec<u8>) {
        let names = self.exchange.queue_names();
        let addresses = names.into_iter().filter_map(|name| Some((QueueAddress::parse(&name).ok()?, name)));
        let asked = self.pending.begin_status(addresses, &mut self.wanted);
        if !asked {
            let text = self.exchange.status(&[]);
            self.reply(text.as_bytes(), None, output);
        }
    }
}
