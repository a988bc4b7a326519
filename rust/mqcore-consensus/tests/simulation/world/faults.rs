//! Faults while a group runs.

use super::World;
use crate::simulation::Mistake;
use crate::simulation::disk::{Contents, Store};

/// An exchange of a member while another one is cut off. That one learns of it just before the power fails everywhere, and then
/// is alone with the former member.
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    lagging: usize,
    leaving: usize,
    stage: Stage,
    until: u64,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The lagging member is cut off until the members are exchanged.
    Exchanging,
    /// It gets what it lacks, and its disk hangs.
    CatchingUp,
    /// Only it and the former member have power.
    Alone,
}

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if let Some(exchange) = self.exchange {
            return self.continue_exchange(exchange);
        }
        if self.exchanges && self.random.one_in(200) {
            self.begin_exchange();
            return Ok(());
        }
        let (node, other) = (self.random.index(self.nodes.len()), self.random.index(self.nodes.len()));
        match self.random.below(1_000) {
            0..=3 => self.crash(node),
            4 => (0..self.nodes.len()).for_each(|node| self.crash(node)),
            5..=24 if self.nodes[node].replica.is_none() => return self.start(node),
            25..=30 => {
                self.cut.insert((node, other));
            }
            31..=34 => {
                // A node between two halves that do not see each other.
                for from in 0..self.nodes.len() {
                    for to in 0..self.nodes.len() {
                        if from != node && to != node && from % 2 != to % 2 {
                            self.cut.insert((from, to));
                        }
                    }
                }
            }
            35..=38 => {
                for to in 0..self.nodes.len() {
                    self.cut.extend([(node, to), (to, node)]);
                }
            }
            39..=50 => self.cut.clear(),
            51..=53 => self.nodes[node].paused_until = self.now + self.random.below(300),
            54..=56 => self.nodes[node].hangs_until = self.now + self.random.below(400),
            57..=68 => return self.damage(node),
            69..=72 => self.exchange_member(),
            73..=85 => self.compact(node),
            86..=88 => {
                if let Some(replica) = &mut self.nodes[node].replica {
                    replica.resign();
                    return self.pump(node);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets the disk of a node lose everything.
    fn damage(&mut self, node: usize) -> Result<(), String> {
        // A group survives the loss of a minority. It must have replaced one, and all members must know it, before it loses
        // the next.
        if !self.has_wanted_members() || !self.wanted.contains(&node) {
            return Ok(());
        }
        match self.mistake {
            Some(Mistake::DamagedReplicaVotes) => {
                self.crash(node);
                let mut base = self.oracle.membership().1.clone();
                base.learners.clear();
                let contents = Contents::of_group(&base);
                self.nodes[node].store = Store::model(contents, self.mistake);
                self.start(node)
            }
            Some(Mistake::TrustsDamagedEntry) => {
                self.crash(node);
                if let Store::Model(disk) = &self.nodes[node].store {
                    disk.borrow_mut().corrupt(&mut self.random);
                }
                self.start(node)
            }
            _ => {
                self.replaced += 1;
                self.renew(node)
            }
        }
    }

    fn begin_exchange(&mut self) {
        let lagging = self.wanted.iter().copied().nth(self.random.index(self.wanted.len()));
        let before = self.wanted.clone();
        self.exchange_member();
        if let (Some(lagging), Some(&leaving)) = (lagging, before.difference(&self.wanted).next())
            && lagging != leaving
        {
            for to in 0..self.nodes.len() {
                self.cut.extend([(lagging, to), (to, lagging)]);
            }
            let until = self.now + 400;
            self.exchange = Some(Exchange { lagging, leaving, stage: Stage::Exchanging, until });
        }
    }

    fn continue_exchange(&mut self, exchange: Exchange) -> Result<(), String> {
        let is_over = self.now >= exchange.until;
        match exchange.stage {
            Stage::Exchanging if self.has_members() => {
                self.cut.clear();
                self.nodes[exchange.lagging].hangs_until = self.now + 500;
                let until = self.now + 5 + self.random.below(60);
                self.exchange = Some(Exchange { stage: Stage::CatchingUp, until, ..exchange });
            }
            Stage::CatchingUp if is_over => {
                (0..self.nodes.len()).for_each(|node| self.crash(node));
                self.nodes[exchange.lagging].hangs_until = 0;
                self.start(exchange.lagging)?;
                self.start(exchange.leaving)?;
                let until = self.now + 200 + self.random.below(200);
                self.exchange = Some(Exchange { stage: Stage::Alone, until, ..exchange });
            }
            Stage::Exchanging | Stage::Alone if is_over => {
                self.cut.clear();
                self.exchange = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// Wants another node in place of a member.
    fn exchange_member(&mut self) {
        let spare: Vec<usize> = (0..self.nodes.len()).filter(|node| !self.wanted.contains(node)).collect();
        let leaving = self.wanted.iter().copied().nth(self.random.index(self.wanted.len()));
        if let (Some(&spare), Some(leaving)) = (spare.first(), leaving)
            && self.has_wanted_members()
        {
            self.wanted.remove(&leaving);
            self.wanted.insert(spare);
        }
    }
}
