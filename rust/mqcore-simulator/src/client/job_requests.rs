//! The client that requests jobs whose results the broker keeps, and what workers do with such jobs.

use mqcore_wire::eventmq::{EmqpCommand, Job};

use super::eventmq::encode;
use super::jobs::{FAILED, JobEvent, JobWork, RETRY, body_around, done, job_id};
use super::{Dialect, SimulatedPeer};
use crate::agenda::Due;
use crate::oracle::jobs::JobReport;
use crate::scenario::ClientRole;
use crate::scenario::jobs::{JobAction, JobTerms};
use crate::scene::Scene;

impl SimulatedPeer {
    /// Sends a request about jobs, if it is connected.
    pub(crate) fn use_jobs(&mut self, action: JobAction, scene: &mut Scene) {
        if !self.is_ready() || !matches!(self.terms.role, ClientRole::Requester(_)) {
            return;
        }
        match action {
            JobAction::Enqueue => self.enqueue(scene),
            JobAction::Chain(count) => {
                let mut jobs = Vec::new();
                for _ in 0..count {
                    let after = jobs.last().copied().into_iter().collect();
                    jobs.push(self.requested_step(after, scene));
                }
                let steps = jobs.iter().enumerate();
                let steps =
                    steps.map(|(place, job)| self.step(*job, (place > 0).then(|| place as u32 - 1), false));
                let steps = steps.collect();
                self.begin_flow(&jobs, steps, scene);
            }
            JobAction::Gather(count) => {
                let mut jobs: Vec<u32> = (0..count).map(|_| self.requested_step(Vec::new(), scene)).collect();
                let mut steps: Vec<String> = jobs.iter().map(|job| self.step(*job, None, false)).collect();
                let last = self.requested_step(jobs.clone(), scene);
                steps.push(self.step(last, 0..count, true));
                jobs.push(last);
                self.begin_flow(&jobs, steps, scene);
            }
            JobAction::Cancel { back, hard } => {
                let requested = self.jobs.iter().rev().nth(back).or(self.jobs.first()).copied();
                let Some(job) = requested else { return };
                scene.note(format_args!("client {} cancels job {job}", self.index));
                scene.oracle.jobs.asked_to_cancel(job);
                let (id, queue) = (job_id(job), self.address());
                let command = EmqpCommand::Cancel { job: id.as_bytes(), queue: queue.as_bytes(), hard };
                self.send(&encode(format!("c{job}").as_bytes(), command), scene);
            }
        }
    }

    /// The terms of the job that is requested next.
    fn next_terms(&self, scene: &Scene) -> JobTerms {
        JobTerms::of(scene.oracle.jobs.count(), self.varies_jobs)
    }

    /// The next job of a flow.
    fn requested_step(&self, after: Vec<u32>, scene: &mut Scene) -> u32 {
        let terms = self.next_terms(scene);
        scene.oracle.jobs.requested(after, JobTerms { guarantee: true, ..terms })
    }

    fn enqueue(&mut self, scene: &mut Scene) {
        let terms = self.next_terms(scene);
        let (job, headers) = (scene.oracle.jobs.requested(Vec::new(), terms), terms.headers(false));
        scene.note(format_args!("client {} requests job {job}", self.index));
        let (head, tail) = body_around(job);
        let (body, queue) = (head + tail, self.address());
        let request = Job {
            queue: queue.as_bytes(),
            headers: headers.as_bytes(),
            body: body.as_bytes(),
            extra: Vec::new(),
        };
        let bytes = encode(job_id(job).as_bytes(), EmqpCommand::Request(request));
        self.send(&bytes, scene);
        self.jobs.push(job);
        self.await_results(&[job], scene);
    }

    /// A step of a flow, as JSON.
    fn step(&self, job: u32, after: impl IntoIterator<Item = u32>, gathers: bool) -> String {
        let (head, tail) = body_around(job);
        let (head, after) = (head.replace('"', "\\\""), after.into_iter().map(|place| place.to_string()));
        let after = after.collect::<Vec<_>>().join(",");
        let (id, queue) = (job_id(job), self.address());
        let headers = JobTerms::of(job, self.varies_jobs).headers(true);
        format!(
            "{{\"id\":\"{id}\",\"queue\":\"{queue}\",\"headers\":\"{headers}\",\"head\":\"{head}\",\"tail\":\"{tail}\",\
             \"after\":[{after}],\"gathers\":{gathers}}}"
        )
    }

    fn begin_flow(&mut self, jobs: &[u32], steps: Vec<String>, scene: &mut Scene) {
        let id = format!("f{}", jobs[0]);
        scene.note(format_args!("client {} begins a flow of the jobs {jobs:?}", self.index));
        let flow = format!("{{\"id\":\"{id}\",\"steps\":[{}]}}", steps.join(","));
        self.send(&encode(id.as_bytes(), EmqpCommand::Flow(flow.as_bytes())), scene);
        self.flows.insert(jobs[0], jobs.to_vec());
        self.jobs.extend(jobs);
        self.await_results(jobs, scene);
    }

    fn await_results(&mut self, jobs: &[u32], scene: &mut Scene) {
        for job in jobs {
            self.send(&encode(b"a", EmqpCommand::Await(job_id(*job).as_bytes())), scene);
        }
    }

    /// Asks again for the results that it has not heard, after it has connected.
    pub(super) fn await_again(&mut self, scene: &mut Scene) {
        self.await_results(&self.jobs.clone(), scene);
    }

    /// Takes something that the broker sent about a job.
    pub(super) fn take_job(&mut self, event: JobEvent, scene: &mut Scene) {
        scene.note(format_args!("client {} gets {event:?}", self.index));
        let now = scene.now;
        let finding = match event {
            JobEvent::Delivered { job, inputs, id } => return self.run_job(job, &inputs, id, scene),
            JobEvent::Kept(job) => {
                scene.oracle.jobs.kept(job);
                None
            }
            JobEvent::Told(job, result) => scene.oracle.jobs.told(job, result, now),
            JobEvent::Cancelled(job, is_cancelled) => scene.oracle.jobs.cancelled(job, is_cancelled, now),
            JobEvent::Begun(first, true) => {
                let jobs = self.flows.get(&first).into_iter().flatten();
                jobs.for_each(|job| scene.oracle.jobs.kept(*job));
                None
            }
            JobEvent::Begun(first, false) => scene.oracle.jobs.refused(first),
        };
        if let Some(text) = finding {
            scene.oracle.find("job", text);
        }
    }

    /// A worker begins a job, and decides how and when it ends.
    fn run_job(&mut self, job: u32, inputs: &[u32], id: Box<[u8]>, scene: &mut Scene) {
        let Some(link) = self.link.as_ref().map(|link| link.id) else { return };
        scene.oracle.job_delivered(job, inputs, link, scene.now);
        let Some(habits) = self.terms.role.consumer() else { return };
        let report = match self.random.below(100) {
            _ if self.is_diligent => JobReport::Done,
            choice if choice < habits.rejects / 4 => JobReport::Failed,
            choice if choice < habits.rejects => JobReport::Retry,
            _ => JobReport::Done,
        };
        let work = JobWork { job, id, report };
        if self.is_diligent {
            return self.report_job(&work, scene);
        }
        let at = scene.now + self.random.below(habits.work_micros + 1);
        if let Some(link) = &mut self.link {
            link.deliveries += 1;
            link.jobs.insert((at, link.deliveries), work);
            scene.agenda.add(at, Due::Client(self.index));
        }
    }

    /// Reports the jobs that have taken long enough.
    pub(super) fn report_jobs(&mut self, scene: &mut Scene) {
        while let Some(link) = &mut self.link
            && let Some(first) = link.jobs.first_entry().filter(|first| first.key().0 <= scene.now)
        {
            let work = first.remove();
            self.report_job(&work, scene);
        }
    }

    fn report_job(&mut self, JobWork { job, id, report }: &JobWork, scene: &mut Scene) {
        let Some(link) = self.link.as_ref().filter(|link| matches!(link.dialect, Dialect::EventMq(_))) else {
            return;
        };
        scene.note(format_args!("client {} reports job {job}: {report:?}", self.index));
        scene.oracle.jobs.reported(*job, link.id, *report);
        let body = match report {
            JobReport::Done => done(*job),
            JobReport::Failed => FAILED.to_owned(),
            JobReport::Retry => RETRY.to_owned(),
        };
        self.send(&encode(b"e", EmqpCommand::Reply { body: body.as_bytes(), request: Some(id) }), scene);
        self.send(&encode(b"r", EmqpCommand::Ready), scene);
    }
}
