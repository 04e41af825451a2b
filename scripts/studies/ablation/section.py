"""The ablation in the report: a chart of the ratio of each option, for every strategy that was studied."""

from matplotlib.figure import Figure

from scripts.report.study_sections import StudySection, StudySets
from scripts.studies.ablation.analysis import option_results, studied_strategies
from scripts.studies.ablation.chart import ablate_chart

FOLDER = "ablation"


def figures(sets: StudySets) -> dict[str, Figure]:
    results = sets.nested.get(FOLDER)
    if results is None:
        return {}
    return {
        f"ablate_{strategy}": ablate_chart(results, strategy, option_results(results, strategy))
        for strategy in studied_strategies(results)
    }


def families(sets: StudySets) -> int:
    results = sets.nested.get(FOLDER)
    return len(studied_strategies(results)) if results else 0


SECTION = StudySection(order=30, nested_folders=(FOLDER,), figures=figures, families=families)
