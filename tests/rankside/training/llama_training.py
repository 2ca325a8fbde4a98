"""Trains a tiny Llama through mindformers on CPU, as a user's script and YAML file would.

    python llama_training.py FOLDER [--no-monitor] [--no-tensorboard] [--parallel] [--checkpoints]
                             [--fail-at STEP] [--resume]

The folder gets everything that training writes, and a folder with data, configuration and code of its own for
each process. --no-monitor leaves RankMonitor out of the configuration, --no-tensorboard the `tensorboard`
section. --parallel trains data parallel under msrun. --checkpoints saves one every five steps; --fail-at raises
at the end of a step, --resume goes on from the last checkpoint of the folder.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import mindspore
import numpy as np
import yaml
from mindspore import ops
from mindspore.communication import comm_func
from mindspore.mindrecord import FileWriter

CALLBACK_FILE = "from rankside import RankMonitor\n"

# On CPU there is no kernel for the float status that the train cell asks for: the check that stays is of the
# gradients themselves. Nor is there one for its dump, which DumpOfDevice stands in for.
TRAIN_CELL_FILE = """
from mindformers.wrapper.wrapper import MFTrainOneStepCell


class CheckedTrainCell(MFTrainOneStepCell):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.ascend_910b_target = True
        self.enable_allfinite = False
        self.if_dump = False
"""

# Devices dump what they compute in the backward pass, and mindformers' callback finds the files some time later: here,
# a step later. What is dumped tells the rank and the step, as this start of the training counts.
DUMP_FILE = """
import os

import numpy as np
from mindformers.tools.utils import get_real_rank
from mindspore.train import Callback


class DumpOfDevice(Callback):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_train_step_end(self, run_context):
        step = run_context.original_args()["cur_step_num"] - 1
        names = ["local_norm__model.layers.0.ffn_norm.weight", "device_local_norm", "finish_step"]
        for number, name in enumerate(names if step else ()):
            value = np.float32(step + get_real_rank() / 4 + number / 2)
            path = os.path.join(self.folder, f"rank_{get_real_rank()}", f"{name}_float32_{10 * step + number}.npy")
            np.save(path, value)
"""

FAILURE_FILE = """
from mindspore.train import Callback


class FailAt(Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_step_end(self, run_context):
        if run_context.original_args()["cur_step_num"] == self.step:
            raise RuntimeError("failed as asked")
"""

CONFIGURATION = {
    "seed": 7,
    "run_mode": "train",
    "use_parallel": False,
    "load_checkpoint": "",
    "resume_training": False,
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "tiny"},
    "runner_config": {"epochs": 2, "batch_size": 4, "sink_mode": False, "sink_size": 1},
    "runner_wrapper": {
        "type": "CheckedTrainCell",
        "auto_register": "train_cell.CheckedTrainCell",
        "scale_sense": 1.0,
        "use_clip_grad": True,
    },
    "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1.0e-8, "weight_decay": 0.0},
    "lr_schedule": {
        "type": "CosineWithWarmUpLR",
        "learning_rate": 0.01,
        "lr_end": 0.001,
        "warmup_steps": 2,
        "total_steps": -1,
    },
    "context": {"mode": 0, "device_target": "CPU", "max_device_memory": "4GB"},
    "parallel": {"parallel_mode": 0, "gradients_mean": True, "full_batch": False},
    "parallel_config": {"data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1},
    "recompute_config": {"recompute": False},
    "monitor_config": {
        "monitor_on": True,
        "dump_path": "",
        "target": ["layers.0"],
        "invert": False,
        "step_interval": 1,
        "local_loss_format": None,
        "local_norm_format": ["tensorboard"],
        "device_local_norm_format": ["tensorboard"],
        "device_local_loss_format": ["tensorboard"],
        "max_attention_logit_format": ["tensorboard"],
        "optimizer_state_format": ["tensorboard"],
        "weight_state_format": ["tensorboard"],
        "throughput_baseline": None,
        "print_struct": False,
    },
    "model": {
        "model_config": {
            "type": "LlamaConfig",
            "batch_size": 4,
            "seq_length": 16,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 2,
            "vocab_size": 64,
            "multiple_of": 16,
            "rms_norm_eps": 1.0e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": -100,
            "ignore_token_id": -100,
            "compute_dtype": "float32",
            "layernorm_compute_type": "float32",
            "softmax_compute_type": "float32",
            "rotary_dtype": "float32",
            "param_init_type": "float32",
            "use_past": False,
            "use_flash_attention": False,
            "use_rope_slice": True,
            "fused_rms_norm": False,
            "checkpoint_name_or_path": "",
        },
        "arch": {"type": "LlamaForCausalLM"},
    },
}


def write_data(folder: Path) -> None:
    """Write 40 rows of 17 tokens: arithmetic progressions modulo the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(str(folder / "tokens.mindrecord"), 1, overwrite=True)
    writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}})
    starts = np.random.default_rng(0).integers(0, 64, 40)
    writer.write_raw_data(
        [{"input_ids": ((start + 3 * np.arange(17)) % 64).astype(np.int32)} for start in starts]
    )
    writer.commit()


def wait_for_all(group: str | None = None) -> None:
    """Do what a barrier does, whose kernel a CPU lacks, too: no rank gets the sum before all have come."""
    ops.AllReduce()(mindspore.Tensor([1.0])).asnumpy()


def add_figures(model: type) -> None:
    """Give a Llama what mindformers' callbacks ask models for other devices for: attention logits, load of experts."""
    logits, load = mindspore.Tensor([1.5, 2.5]), mindspore.Tensor([0.25, 0.75])
    model.get_max_attention_logit = lambda *_: {"layers.0": logits}
    model.reset_max_attention_logit = lambda *_: None
    model.update_topk_bias = lambda *_: [("layer_0", load)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for switch in ("--no-monitor", "--no-tensorboard", "--parallel", "--checkpoints", "--resume"):
        parser.add_argument(switch, action="store_true")
    parser.add_argument("--fail-at", type=int)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    own = folder / f"process_{os.getpid()}"  # each rank, and the scheduler, runs this script
    registered = own / "registered"
    registered.mkdir(parents=True)
    (registered / "rank_monitor.py").write_text(CALLBACK_FILE)
    (registered / "train_cell.py").write_text(TRAIN_CELL_FILE)
    (registered / "failure.py").write_text(FAILURE_FILE)
    (registered / "dump.py").write_text(DUMP_FILE)
    os.environ["REGISTER_PATH"] = str(registered)
    sys.path.append(str(registered))
    os.chdir(own)
    write_data(own / "data")

    comm_func.barrier = wait_for_all
    from mindformers.core.context import build_context  # noqa: PLC0415 (it reads the environment)
    from mindformers.models.llama import LlamaForCausalLM  # noqa: PLC0415 (it reads the environment)
    from mindformers.tools.register import MindFormerConfig  # noqa: PLC0415 (it reads the environment)
    from mindformers.trainer import Trainer  # noqa: PLC0415 (it reads the environment)
    from mindformers.utils.file_utils import set_output_path  # noqa: PLC0415 (it reads the environment)

    dataset = {
        "data_loader": {"type": "MindDataset", "dataset_dir": str(own / "data"), "shuffle": False},
        "input_columns": ["input_ids"],
        "num_parallel_workers": 1,
        "python_multiprocessing": False,
        "drop_remainder": True,
        "batch_size": 4,
        "repeat": 1,
        "numa_enable": False,
        "prefetch_size": 1,
    }
    configuration = {
        **CONFIGURATION,
        "output_dir": str(folder / "output"),
        "train_dataset": dataset,
        "train_dataset_task": {"type": "CausalLanguageModelDataset", "dataset_config": dict(dataset)},
        "tensorboard": {
            "tensorboard_dir": str(folder / "theirs"),
            "tensorboard_queue_size": 10,
            "log_loss_scale_to_tensorboard": True,
            "log_timers_to_tensorboard": True,
            "log_expert_load_to_tensorboard": True,
        },
    }
    dump_path = str(own / "dump")
    configuration["monitor_config"] = {**CONFIGURATION["monitor_config"], "dump_path": dump_path}
    if arguments.no_tensorboard:
        del configuration["tensorboard"]
    callbacks = [
        {"type": "MFLossMonitor"},
        {"type": "TopkBiasBalanceCallback"},
        {"type": "DumpOfDevice", "auto_register": "dump.DumpOfDevice", "folder": dump_path},
    ]
    if not arguments.no_monitor:
        callbacks.append({"type": "RankMonitor", "auto_register": "rank_monitor.RankMonitor", "log_every": 0})
    if arguments.checkpoints:
        callbacks.append({"type": "CheckpointMonitor", "save_checkpoint_steps": 5, "keep_checkpoint_max": 9})
    if arguments.fail_at:
        callbacks.append({"type": "FailAt", "auto_register": "failure.FailAt", "step": arguments.fail_at})
    configuration["callbacks"] = callbacks
    configuration["use_parallel"] = arguments.parallel
    if arguments.resume:
        configuration["load_checkpoint"] = str(folder / "output" / "checkpoint")
        configuration["resume_training"] = True
    file = own / "tiny_llama.yaml"
    file.write_text(yaml.safe_dump(configuration))
    add_figures(LlamaForCausalLM)
    config = MindFormerConfig(str(file))
    set_output_path(config.output_dir)
    build_context(config)
    Trainer(config).train()


if __name__ == "__main__":
    main()
