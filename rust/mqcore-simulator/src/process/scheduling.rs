//! The steps of the thread that runs schedules.

use mqcore_broker::model::effect::Event;
use mqcore_broker::model::id::{ConnectionId, QueueAddress};
use mqcore_broker::model::job_notice::JobNotice;
use mqcore_journal::options::Options;
use mqcore_journal::storage::MemoryStorage;

use super::{Process, Task, WAKE_MICROS};
use crate::connection::OutboxItem;
use crate::inbox::Urgent;
use crate::scenario::Scenario;
use crate::scene::Scene;
use crate::schedules::{AfterStep, ScheduleTask, StepTimes};
use crate::time::Micros;

fn times(scene: &Scene) -> StepTimes {
    StepTimes { now: scene.now, now_ms: scene.timestamp().0, system_ms: scene.system_ms() }
}

impl Process {
    /// Continues with the schedules and jobs of the journal, if the scenario has any.
    pub(super) fn open_schedules(
        &mut self,
        scenario: &Scenario,
        disks: &[MemoryStorage],
        scene: &mut Scene,
    ) -> Result<(), String> {
        if scenario.schedules.is_empty() && scenario.jobs.is_none() {
            self.shared.keep_jobs(None);
            return Ok(());
        }
        let options = Options {
            shard: u32::MAX - 2,
            segment_bytes: scenario.segment_bytes,
            now_ms: scene.timestamp().0,
            identity: scenario.seed ^ 0x5c4e,
            ..Options::default()
        };
        let disk = disks[scenario.schedules_disk()].clone();
        let task = ScheduleTask::open(disk, options, self.terms.placement)?;
        let (schedules, runs) = task.counts();
        scene.note(format_args!("restored {schedules} schedules and {runs} runs"));
        self.shared.keep_schedules(task.port.clone());
        self.shared.keep_jobs(Some(task.port.clone()));
        self.schedules = Some(task);
        self.wake_schedules(WAKE_MICROS, scene);
        Ok(())
    }

    /// Passes on what a session hears about a job. A connection that has ended needs nothing.
    fn tell(&mut self, id: ConnectionId, notice: JobNotice, scene: &mut Scene) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let event = Event::Job(Box::new(notice));
        let bytes = event.pending_bytes();
        connection.push(vec![OutboxItem::Events(vec![event])], bytes, 0);
        self.wake_connection(id, scene);
    }

    /// Begins a round after some time at the latest, or after the current one.
    fn wake_schedules(&mut self, after: Micros, scene: &mut Scene) {
        let Some(task) = self.schedules.as_mut().filter(|task| !task.busy) else { return };
        let at = scene.now + after;
        if task.wakes_at.is_none_or(|earlier| at < earlier) {
            task.wakes_at = Some(at);
            self.add(at, Task::ScheduleRound(at), scene);
        }
    }

    /// Sessions may have asked for schedules.
    pub(super) fn look_for_schedules(&mut self, scene: &mut Scene) {
        if self.schedules.as_ref().is_some_and(|task| task.port.has_requests()) {
            let after = scene.network.jitter(WAKE_MICROS);
            self.wake_schedules(after, scene);
        }
    }

    /// Messages of a shard to the thread.
    pub(super) fn notify_schedules(
        &mut self,
        events: Vec<Event>,
        found: Vec<Vec<(QueueAddress, bool)>>,
        scene: &mut Scene,
    ) {
        let Some(task) = &mut self.schedules else { return };
        let has_events = !events.is_empty();
        task.events.extend(events);
        for found in found {
            let next = self.schedules.as_mut().and_then(|task| task.answered(found, times(scene)));
            if let Some(next) = next {
                self.schedules_done(next, scene);
            }
        }
        if has_events {
            let after = scene.network.jitter(WAKE_MICROS);
            self.wake_schedules(after, scene);
        }
    }

    /// Runs the thread. Returns a finding if something is wrong.
    pub(super) fn run_schedules(&mut self, at: Option<Micros>, scene: &mut Scene) -> Option<String> {
        let task = self.schedules.as_mut()?;
        let next = match at {
            Some(at) if task.busy || task.wakes_at != Some(at) => return None,
            Some(_) => {
                (task.wakes_at, task.busy) = (None, true);
                match task.begin(times(scene)) {
                    Ok(next) => next,
                    Err(damage) => return Some(damage),
                }
            }
            None => task.sync(times(scene)),
        };
        self.schedules_done(next, scene);
        None
    }

    fn schedules_done(&mut self, next: AfterStep, scene: &mut Scene) {
        match next {
            AfterStep::Asks(asked) => {
                for (shard, queues) in asked {
                    self.send_urgent(shard, Urgent::Takes(queues), scene);
                }
            }
            AfterStep::Sync => {
                let at = scene.now + scene.sync_micros();
                self.add(at, Task::ScheduleSync, scene);
            }
            AfterStep::Waits(commands, notices, wait) => {
                for (shard, commands) in commands {
                    scene.note(format_args!("{} runs for shard {shard}", commands.len()));
                    self.send_urgent(shard, Urgent::Scheduled(commands), scene);
                }
                for (id, notice) in notices {
                    self.tell(id, notice, scene);
                }
                let Some(task) = &mut self.schedules else { return };
                task.busy = false;
                let has_news = task.port.has_requests() || !task.events.is_empty();
                if let Some(after) = if has_news { Some(0) } else { wait } {
                    self.wake_schedules(after, scene);
                }
            }
        }
    }
}
