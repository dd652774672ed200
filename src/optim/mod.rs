//! Optimizers. The parameters of a group share one buffer, so that an update is one in-place dispatch per group.

mod clip;
mod flat;
mod rules;
mod scaler;
mod schedule;

pub use clip::{clip_grad_norm, clip_grad_value};
pub(crate) use flat::Summed;
pub use rules::{Adam, AdamW, Lion, Muon, Rule, Sgd};
pub use scaler::LossScaler;
pub use schedule::Schedule;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_all, inputs_of};
use crate::nn::Param;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A group of parameters with common settings.
pub struct ParamGroup {
    /// The parameters with their names.
    pub params: Vec<(String, Param)>,
    /// Factor of the learning rate.
    pub lr_scale: f64,
    /// Weight decay, multiplied by the learning rate in each update; `None` uses the rule's own.
    pub weight_decay: Option<f64>,
    /// The group's own rule, if it differs from the optimizer's.
    pub rule: Option<Box<dyn Rule>>,
}

impl ParamGroup {
    /// A group with the rule's own settings.
    pub fn new(params: Vec<(String, Param)>) -> ParamGroup {
        ParamGroup { params, lr_scale: 1.0, weight_decay: None, rule: None }
    }
    /// With this weight decay.
    pub fn weight_decay(mut self, decay: f64) -> ParamGroup {
        self.weight_decay = Some(decay);
        self
    }
    /// With its own rule.
    pub fn rule(mut self, rule: impl Rule + 'static) -> ParamGroup {
        self.rule = Some(Box::new(rule));
        self
    }
    /// With this factor on the learning rate.
    pub fn lr_scale(mut self, scale: f64) -> ParamGroup {
        self.lr_scale = scale;
        self
    }
}

/// The usual two groups: matrices and tables with weight decay, vectors (biases and norms) without.
pub fn decay_matrices(params: Vec<(String, Param)>, decay: f64) -> Vec<ParamGroup> {
    let (matrices, vectors): (Vec<_>, Vec<_>) = params.into_iter().partition(|(_, p)| p.get().rank() >= 2);
    [(matrices, decay), (vectors, 0.0)]
        .into_iter()
        .filter(|(p, _)| !p.is_empty())
        .map(|(p, d)| ParamGroup::new(p).weight_decay(d))
        .collect()
}

/// Numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct StepNumbers {
    /// The learning rate, the group's factor included.
    pub lr: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// This update's number, from 1.
    pub t: u64,
}

/// A parameter's position in its group's buffer.
struct Member {
    name: String,
    param: Param,
    start: usize,
    shape: Vec<usize>,
}

struct Group {
    rule: Arc<dyn Rule>,
    members: Vec<Member>,
    /// The concatenated values in full precision.
    flat: Tensor,
    /// The part of `flat` that this process updates: all of it, unless the states are distributed over ranks.
    own: Range<usize>,
    /// The values of that part, where it is not all.
    slice: Option<Tensor>,
    /// The rule's state tensors, each as long as `own`.
    states: Vec<Tensor>,
    /// The copy in lower precision that the model reads, if any.
    shadow: Option<Tensor>,
    lr_scale: f64,
    weight_decay: f64,
}

/// An optimizer: rules over groups of parameters.
pub struct Optimizer {
    groups: Vec<Group>,
    lr: f64,
    steps: u64,
    max_norm: Option<f64>,
    norm: Option<Tensor>,
    scaler: Option<LossScaler>,
}

/// Members begin at multiples of this many elements.
const ALIGN: usize = 4;

impl Optimizer {
    /// An optimizer of these parameters in one group.
    ///
    /// # Errors
    /// If there are no parameters, or device errors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?;
    /// p.get().sum_all()?.backward()?; // a gradient of ones
    /// optimizer.step()?;
    /// assert_eq!(p.get().to_vec()?, [0.5, 1.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(rule: impl Rule + 'static, params: Vec<(String, Param)>, lr: f64) -> TensorResult<Optimizer> {
        Optimizer::with_groups(rule, vec![ParamGroup::new(params)], lr)
    }

    /// An optimizer of several groups, those without a rule of their own by `rule`. Their parameters move into buffers of the groups, keep their values, and belong to this optimizer.
    ///
    /// # Errors
    /// [`TensorError::Config`] where there are no groups or one is empty; when the parameters of a group are on different devices; device
    /// errors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, ParamGroup, Sgd};
    ///
    /// let one = Tensor::new(&[1.0], &Device::cpu())?;
    /// let (a, b) = (Param::new(&one)?, Param::new(&one)?);
    /// let group = |name: &str, p: &Param| ParamGroup::new(vec![(name.into(), p.clone())]);
    /// let mut optimizer = Optimizer::with_groups(Sgd::default(), vec![group("a", &a), group("b", &b).lr_scale(0.5)], 0.5)?;
    /// a.get().add(&b.get())?.sum_all()?.backward()?;
    /// optimizer.step()?;
    /// assert_eq!((a.get().item()?, b.get().item()?), (0.5, 0.75));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn with_groups(rule: impl Rule + 'static, groups: Vec<ParamGroup>, lr: f64) -> TensorResult<Optimizer> {
        let rule: Arc<dyn Rule> = Arc::new(rule);
        let groups = groups.into_iter().map(|g| Group::new(g, &rule)).collect::<TensorResult<Vec<_>>>()?;
        if groups.is_empty() {
            return Err(TensorError::Config("an optimizer needs parameters".into()));
        }
        let roots: Vec<&Tensor> = groups.iter().flat_map(|g| g.states.iter().chain([&g.flat])).collect();
        eval_all(&roots)?;
        let mut o = Optimizer { groups, lr, steps: 0, max_norm: None, norm: None, scaler: None };
        o.publish()?;
        Ok(o)
    }

    /// Limits the norm of all gradients together (Pascanu et al., 2013), as part of each step.
    pub fn max_grad_norm(mut self, norm: f64) -> Optimizer {
        self.max_norm = Some(norm);
        self
    }

    /// Mixed precision: the model reads its parameters in `dtype` while the optimizer keeps them in f32. With f16 the loss must be multiplied by
    /// [`Optimizer::scale_loss`] before `backward`; steps with gradients that overflow are skipped, without a wait.
    ///
    /// # Errors
    /// [`TensorError::Config`] where `dtype` is neither f16 nor bf16; device errors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?.mixed_precision(DType::BF16)?;
    /// assert_eq!(p.get().dtype(), DType::BF16);
    /// assert_eq!(optimizer.state()?.0["param.p"].dtype(), DType::F32); // what updates are added to
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn mixed_precision(mut self, dtype: DType) -> TensorResult<Optimizer> {
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Err(TensorError::Config(format!("mixed precision is f16 or bf16, not {dtype}")));
        }
        for g in &mut self.groups {
            g.shadow = Some(g.flat.cast(dtype)?);
        }
        let shadows: Vec<&Tensor> = self.groups.iter().filter_map(|g| g.shadow.as_ref()).collect();
        eval_all(&shadows)?;
        if dtype == DType::F16 {
            self.scaler = Some(LossScaler::new(self.groups[0].flat.device())?);
        }
        self.publish()?;
        Ok(self)
    }

    /// The loss to call `backward` on, multiplied by the loss scale if there is one.
    ///
    /// # Errors
    /// When the loss is on another device than the parameters, or in a block format.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?.mixed_precision(DType::F16)?;
    /// let loss = Tensor::new(&[2.0], &Device::cpu())?;
    /// assert_eq!(optimizer.scale_loss(&loss)?.item()?, 2.0 * 65536.0); // the scale to begin with
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn scale_loss(&self, loss: &Tensor) -> TensorResult<Tensor> {
        match &self.scaler {
            Some(s) => loss.mul(&s.scale().cast(loss.dtype())?),
            None => Ok(loss.clone()),
        }
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.lr
    }
    /// Sets the learning rate; the plan stays the same.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }
    /// Updates made.
    pub fn steps(&self) -> u64 {
        self.steps
    }
    /// The norm of all gradients of the last step, before it was limited; `None` without [`Optimizer::max_grad_norm`].
    pub fn grad_norm(&self) -> Option<&Tensor> {
        self.norm.as_ref()
    }
    /// The scale of the loss and the number of skipped steps, where there is mixed precision in f16.
    pub fn loss_scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }
    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.groups[0].flat.device().clone()
    }

    /// Forgets all gradients.
    ///
    /// # Errors
    /// Never; it is a `Result` so that it chains like the other methods.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?;
    /// p.get().sum_all()?.backward()?;
    /// assert!(p.grad().is_some());
    /// optimizer.zero_grad()?;
    /// assert!(p.grad().is_none());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn zero_grad(&mut self) -> TensorResult<()> {
        self.groups.iter().flat_map(|g| &g.members).for_each(|m| m.param.zero_grad());
        Ok(())
    }

    /// Computes and stores the gradients collected so far, and `also`, as one plan: what they were computed from is let go. Between the parts of
    /// a step that is made of several backward passes this keeps one part's memory at a time.
    ///
    /// # Errors
    /// The device's.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?;
    /// let optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5)?;
    /// let loss = p.get().square()?.sum_all()?;
    /// loss.backward()?;
    /// optimizer.eval_gradients(&[&loss])?;
    /// let grad = p.grad().expect("collected");
    /// assert!(grad.explain()?.is_empty()); // it is there: nothing is left to compute
    /// assert_eq!(grad.to_vec()?, [2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn eval_gradients(&self, also: &[&Tensor]) -> TensorResult<()> {
        let grads: Vec<Tensor> = self.groups.iter().flat_map(|g| &g.members).filter_map(|m| m.param.grad()).collect();
        eval_all(&grads.iter().chain(also.iter().copied()).collect::<Vec<_>>())
    }

    /// Updates every parameter from its collected gradient (zeros where there is none) and evaluates everything that it depends on, forward and
    /// backward pass included, as one plan. Values computed from the old parameters that somebody still holds are stored by the same plan.
    ///
    /// # Errors
    /// If no parameter has a gradient; device errors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[3.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.25)?;
    /// assert!(optimizer.step().is_err()); // there is no gradient yet
    /// p.get().square()?.sum_all()?.backward()?;
    /// optimizer.step()?;
    /// assert_eq!((p.get().item()?, optimizer.steps()), (1.5, 1)); // 3 − 0.25 · 6
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn step(&mut self) -> TensorResult<()> {
        self.step_with(&[])
    }

    /// The plan that [`Optimizer::step`] would run now, without running it: forward and backward pass included. The update
    /// counts as made, and runs with the next evaluation that needs a parameter's new value; clear the gradients before the next step.
    ///
    /// # Errors
    /// [`TensorError::State`] where no parameter has a gradient; those of planning.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[3.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.25)?;
    /// p.get().square()?.sum_all()?.backward()?;
    /// let plan = optimizer.explain()?;
    /// assert!(plan.lines().last().is_some_and(|line| line.contains("dispatch")), "{plan}");
    /// assert_eq!(optimizer.steps(), 1); // the update is made when somebody reads `p`
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn explain(&mut self) -> TensorResult<String> {
        no_grad(|| self.build())?;
        let plan = crate::eval::plan_of(&self.roots())?;
        Ok(plan.map(|p| p.to_string()).unwrap_or_default())
    }

    /// Everything that a step computes.
    fn roots(&self) -> Vec<&Tensor> {
        let mut roots: Vec<&Tensor> = Vec::new();
        for g in &self.groups {
            roots.extend(&g.states);
            roots.push(g.slice.as_ref().unwrap_or(&g.flat));
            roots.extend(&g.shadow);
        }
        roots.extend(&self.norm);
        if let Some(s) = &self.scaler {
            roots.extend(s.state());
        }
        roots
    }

    /// Like [`Optimizer::step`], computing `also` in the same plan.
    ///
    /// # Errors
    /// Like [`Optimizer::step`]. If memory runs out, nothing has changed: clear the gradients and try again with a smaller batch.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{Optimizer, Sgd};
    ///
    /// let p = Param::new(&Tensor::new(&[3.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.25)?;
    /// let loss = p.get().square()?.sum_all()?;
    /// loss.backward()?;
    /// optimizer.step_with(&[&loss])?;
    /// assert_eq!((loss.item()?, p.get().item()?), (9.0, 1.5)); // the loss is that of the old value
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn step_with(&mut self, also: &[&Tensor]) -> TensorResult<()> {
        self.run(also, Optimizer::build)
    }

    /// Runs the update that `build` makes of the graph, and takes it back where memory runs out.
    fn run(&mut self, also: &[&Tensor], build: impl FnOnce(&mut Optimizer) -> TensorResult<()>) -> TensorResult<()> {
        let (scaler, norm) = (self.scaler.clone(), self.norm.clone());
        no_grad(|| build(self))?;
        let roots: Vec<&Tensor> = also.iter().copied().chain(self.roots()).collect();
        let done = eval_all(&roots);
        if let Err(TensorError::OutOfMemory { .. }) = &done {
            // Memory is taken before anything runs, so the old values are as they were.
            (self.scaler, self.norm) = (scaler, norm);
            self.steps -= 1;
            for g in &mut self.groups {
                g.states.iter_mut().chain([&mut g.flat]).chain(&mut g.slice).chain(&mut g.shadow).for_each(before_write);
            }
            self.publish()?;
        }
        crate::events::optimizer_step(self.groups.iter().map(|g| g.members.len()).sum(), self.lr);
        done
    }

    /// Builds the graph of one update.
    fn build(&mut self) -> TensorResult<()> {
        if !self.groups.iter().flat_map(|g| &g.members).any(|m| m.param.grad().is_some()) {
            return Err(TensorError::State("step: no parameter has a gradient; call backward first".into()));
        }
        let mut grads = self.groups.iter().map(Group::gradients).collect::<TensorResult<Vec<_>>>()?;
        for (g, grad) in self.groups.iter().zip(&grads) {
            g.publish_gradients(grad)?;
        }
        let mut keep = None;
        if let Some(s) = &mut self.scaler {
            let (scaled, finite) = s.unscale(&grads)?;
            grads = scaled;
            keep = Some(finite);
        }
        if let Some(max) = self.max_norm {
            let norm = clip::norm_of(&grads)?;
            let factor = clip::factor(&norm, max)?;
            grads = grads.iter().map(|g| g.mul(&factor)).collect::<TensorResult<_>>()?;
            self.norm = Some(norm);
        }
        self.update(grads, keep.as_ref())
    }

    /// Updates every group by its rule, and lets the parameters see it.
    fn update(&mut self, grads: Vec<Tensor>, keep: Option<&Tensor>) -> TensorResult<()> {
        self.steps += 1;
        for (g, grad) in self.groups.iter_mut().zip(grads) {
            let numbers = StepNumbers { lr: self.lr * g.lr_scale, weight_decay: g.weight_decay, t: self.steps };
            g.update(grad, &numbers, keep)?;
        }
        self.publish()
    }

    /// Lets every parameter see its new value.
    fn publish(&mut self) -> TensorResult<()> {
        for g in &self.groups {
            let seen = g.shadow.as_ref().unwrap_or(&g.flat);
            for m in &g.members {
                m.param.set(&m.part(seen)?)?;
            }
        }
        Ok(())
    }

    /// Everything the optimizer remembers, by name: values in full precision (`param.NAME`), states (`stateK.NAME`) and `scale`, and the number
    /// of updates in `steps`.
    ///
    /// # Errors
    /// [`TensorError::State`] where the states are distributed over ranks ([`crate::train::LaneStep::state`] gathers them).
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{AdamW, Optimizer};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let optimizer = Optimizer::new(AdamW::default(), vec![("p".into(), p)], 1e-3)?;
    /// let (state, steps) = optimizer.state()?;
    /// assert_eq!(state.keys().collect::<Vec<_>>(), ["param.p", "state0.p", "state1.p"]);
    /// assert_eq!(steps, 0);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn state(&self) -> TensorResult<(BTreeMap<String, Tensor>, u64)> {
        if self.groups.iter().any(|g| g.slice.is_some()) {
            return Err(TensorError::State("the optimizer's states are distributed over ranks: LaneStep::state gathers them".into()));
        }
        self.state_of(&self.groups.iter().map(|g| g.states.clone()).collect::<Vec<_>>())
    }

    /// As [`Optimizer::state`], with these states of each group.
    fn state_of(&self, states: &[Vec<Tensor>]) -> TensorResult<(BTreeMap<String, Tensor>, u64)> {
        let mut out = BTreeMap::new();
        for (g, states) in self.groups.iter().zip(states) {
            for m in &g.members {
                out.insert(format!("param.{}", m.name), m.part(&g.flat)?);
                for (k, s) in states.iter().enumerate() {
                    out.insert(format!("state{k}.{}", m.name), m.part(s)?);
                }
            }
        }
        if let Some(s) = &self.scaler {
            for (i, t) in s.state().into_iter().enumerate() {
                out.insert(format!("scale.{i}"), t.clone());
            }
        }
        Ok((out, self.steps))
    }

    /// Takes over what [`Optimizer::state`] gave. Nothing changes if something is missing.
    ///
    /// # Errors
    /// If a name is missing or a shape differs.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::optim::{AdamW, Optimizer};
    ///
    /// let p = Param::new(&Tensor::new(&[1.0], &Device::cpu())?)?;
    /// let mut optimizer = Optimizer::new(AdamW::default(), vec![("p".into(), p.clone())], 1e-3)?;
    /// let (state, steps) = optimizer.state()?;
    /// p.get().sum_all()?.backward()?;
    /// optimizer.step()?;
    /// optimizer.load_state(&state, steps)?; // back to the beginning
    /// assert_eq!((p.get().item()?, optimizer.steps()), (1.0, 0));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load_state(&mut self, values: &BTreeMap<String, Tensor>, steps: u64) -> TensorResult<()> {
        let device = self.device();
        let find = |name: String, shape: &[usize]| -> TensorResult<Tensor> {
            let t = values.get(&name).ok_or_else(|| TensorError::Value(format!("the checkpoint lacks {name}")))?;
            if t.dims() != shape {
                return Err(TensorError::Value(format!("{name} has shape {}, the parameter {shape:?}", t.shape())));
            }
            t.to_device(&device)
        };
        let mut fresh = Vec::new();
        for g in &self.groups {
            let gather = |prefix: &str| -> TensorResult<Tensor> {
                let parts = g.members.iter().map(|m| find(format!("{prefix}.{}", m.name), &m.shape)).collect::<TensorResult<Vec<_>>>()?;
                join(&g.members, &parts, 0..g.flat.numel(), &device)
            };
            let own = |whole: Tensor| if g.slice.is_none() { Ok(whole) } else { g.part(&whole) };
            let states = (0..g.states.len()).map(|k| own(gather(&format!("state{k}"))?)).collect::<TensorResult<Vec<_>>>()?;
            fresh.push((gather("param")?, states));
        }
        if let Some(s) = &mut self.scaler {
            let parts = (0..s.state().len()).map(|i| find(format!("scale.{i}"), &[])).collect::<TensorResult<Vec<_>>>()?;
            s.set_state(parts);
        }
        for (g, (flat, states)) in self.groups.iter_mut().zip(fresh) {
            g.shadow = match &g.shadow {
                Some(s) => Some(flat.cast(s.dtype())?),
                None => None,
            };
            if g.slice.is_some() {
                g.slice = Some(g.part(&flat)?);
            }
            (g.flat, g.states) = (flat, states);
        }
        let roots: Vec<&Tensor> =
            self.groups.iter().flat_map(|g| g.states.iter().chain([&g.flat]).chain(&g.slice).chain(&g.shadow)).collect();
        eval_all(&roots)?;
        self.steps = steps;
        self.publish()
    }
}

/// Takes back a write that was not computed.
fn before_write(t: &mut Tensor) {
    if t.node.stored.get().is_none() {
        if let Some(old) = inputs_of(&t.node).first() {
            *t = old.clone();
        }
    }
}

impl Member {
    fn part(&self, flat: &Tensor) -> TensorResult<Tensor> {
        flat.narrow(0, self.start, self.shape.iter().product())?.reshape(&self.shape)
    }
}

/// Values one after the other as the members lie, with zeros between them where they do not meet.
fn join(members: &[Member], values: &[Tensor], range: Range<usize>, device: &Device) -> TensorResult<Tensor> {
    let mut pieces = Vec::new();
    let mut end = range.start;
    let fill = |pieces: &mut Vec<Tensor>, from: usize, to: usize| -> TensorResult<()> {
        if to > from {
            pieces.push(Tensor::zeros(&[to - from], DType::F32, device)?);
        }
        Ok(())
    };
    for (m, v) in members.iter().zip(values) {
        fill(&mut pieces, end, m.start)?;
        pieces.push(v.cast(DType::F32)?.flatten(0, -1)?);
        end = m.start + v.numel();
    }
    fill(&mut pieces, end, range.end)?;
    Tensor::cat(&pieces, 0)
}

impl Group {
    fn new(g: ParamGroup, usual: &Arc<dyn Rule>) -> TensorResult<Group> {
        let rule = g.rule.map_or_else(|| usual.clone(), Arc::from);
        let mut members = Vec::new();
        let mut start = 0;
        for (name, param) in g.params {
            let shape = param.get().dims().to_vec();
            let count: usize = shape.iter().product();
            members.push(Member { name, param, start, shape });
            start += count.next_multiple_of(ALIGN);
        }
        let Some(first) = members.first() else { return Err(TensorError::Config("a group of parameters is empty".into())) };
        let device = first.param.get().device().clone();
        let values: Vec<Tensor> = members.iter().map(|m| m.param.get().detach()).collect();
        let flat = join(&members, &values, 0..start, &device)?;
        let states = (0..rule.states()).map(|_| Tensor::zeros(&[start], DType::F32, &device)).collect::<TensorResult<Vec<_>>>()?;
        let weight_decay = g.weight_decay.unwrap_or(rule.weight_decay());
        Ok(Group { rule, members, flat, own: 0..start, slice: None, states, shadow: None, lr_scale: g.lr_scale, weight_decay })
    }

    /// All gradients, one after the other.
    fn gradients(&self) -> TensorResult<Tensor> {
        self.gradients_of(0..self.flat.numel())
    }

    /// The gradients of the members that begin in a range of the buffer, which begins and ends with members.
    fn gradients_of(&self, range: Range<usize>) -> TensorResult<Tensor> {
        let [first, end] = [range.start, range.end].map(|at| self.members.partition_point(|m| m.start < at));
        let members = &self.members[first..end];
        let parts = members
            .iter()
            .map(|m| match m.param.grad() {
                Some(g) => Ok(g),
                None => Tensor::zeros(&m.shape, DType::F32, self.flat.device()),
            })
            .collect::<TensorResult<Vec<_>>>()?;
        join(members, &parts, range, self.flat.device())
    }

    /// Lets every parameter see its gradient in the group's buffer.
    fn publish_gradients(&self, flat: &Tensor) -> TensorResult<()> {
        for m in &self.members {
            if let Some(g) = m.param.grad() {
                m.param.set_grad(Some(m.part(flat)?.cast(g.dtype())?));
            }
        }
        Ok(())
    }

    /// One update from the gradient of the part that this process updates.
    fn update(&mut self, grad: Tensor, numbers: &StepNumbers, keep: Option<&Tensor>) -> TensorResult<()> {
        if self.own.is_empty() {
            return Ok(());
        }
        let inside = self.members.iter().filter(|m| self.own.contains(&m.start));
        let shapes: Vec<(usize, &[usize])> = inside.map(|m| (m.start - self.own.start, &m.shape[..])).collect();
        let guarded = |new: Tensor, old: &Tensor| match keep {
            Some(finite) => finite.where_(&new, old),
            None => Ok(new),
        };
        let value = self.slice.as_ref().unwrap_or(&self.flat);
        let states = self.rule.remember(value, &grad, &self.states, numbers)?;
        for (own, new) in self.states.iter_mut().zip(states) {
            let new = guarded(new, own)?;
            *own = own.write(&new, 0, 0)?;
        }
        let new = self.rule.update(value, &grad, &self.states, numbers, &shapes)?;
        let new = guarded(new, value)?;
        let new = value.write(&new, 0, 0)?;
        if let Some(slice) = &mut self.slice {
            // What the model reads follows when the other parts are known.
            *slice = new;
            return Ok(());
        }
        self.flat = new;
        if let Some(s) = &mut self.shadow {
            *s = s.write(&self.flat.cast(s.dtype())?, 0, 0)?;
        }
        Ok(())
    }
}
