"""A result as a person wants to read it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcsgd.result import Result


def summary(result: "Result") -> str:
    """What a person wants to read."""
    from hpcsgd.advice import in_short

    report, ledger = result.report, result.ledger
    schedule, grid = report["schedule"], report["grid"]
    products = ledger["products"]
    lines = [
        f"status        {result.status.value}",
        f"loss          {_loss(result)}",
        f"steps         {result.iterations} in {result.exchanges} exchanges"
        f"   (batch {schedule['batch']}, global {schedule['global_batch']},"
        f" steps {schedule['steps']}, products {report['products']})",
        f"ranks         {report['ranks']} as {grid['replicas']} x {grid['members']}",
        f"synchronised  {products['calls']} times for products"
        f" ({products['words']} words), {ledger['agreement']['calls']} times to agree",
        f"seconds       {report['seconds_total']:.3f} training,"
        f" {report['seconds_setup']:.3f} set-up,"
        f" {report['seconds_evaluate']:.3f} evaluating"
        f"   ({report['rows_per_second']:.4g} rows/s)",
        f"weights       sha256 {result.weights_sha256[:16]}…",
    ]
    if not report["emulated_members"]:  # else there is no loss to judge by
        lines += [f"{title:13s} {line}" for title, line in in_short(result).items()]
    return "\n".join(lines)


def _loss(result: "Result") -> str:
    report, many = result.report, result.report["emulated_members"]
    if many:
        return f"not known: one rank was timed as one of {many}, and learnt nothing"
    return f"{result.loss:.8g}   (all {report['rows']} rows, float64)"
