"""One process on one device: the baseline that every other strategy is measured against.

python -m benchmarks.single --config configs/smoke.yaml
"""

from torch.nn.functional import cross_entropy

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import RankInfo
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, RankInfo())
    train, val = build_loaders(config, context)
    model = build_model(config, len(train.classes), context.device)
    optimizer = build_optimizer(config, model)

    def step(images, target):
        optimizer.zero_grad()
        output = model(images)
        loss = cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    fit(
        config,
        context,
        model=model,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(),
        columns={"parallel": None},  # single: the baseline has nothing to divide
    )


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split()


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__)))
