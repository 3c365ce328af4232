"""A heavy ranker of molecules: how much two of them overlap in space, in shape and colour (kinds of atoms), by rdkit.

    score = (shape Tanimoto + colour Tanimoto) / 2 in [0, 1],   after the best of the alignments that are tried

A molecule is a SMILES string. Its conformation in space is computed once, from a fixed seed, and kept.

Source: rdkit's rdShapeAlign, which is PubChem's shape overlay.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rails_ray.optional import optional
from rails_ray.reranking.rankers import RANKERS, Candidate

SEED = 7  # of conformations
EQUAL_WEIGHT = 0.5  # of shape and colour, while alignments are tried
MOST_KEPT = 2**14  # conformations in memory


class MoleculeRanker:
    """The contract of `HeavyRanker`.

    Args:
        field: of queries and items: a SMILES string.

    Raises:
        UnsupportedError: if rdkit is not installed.
    """

    def __init__(self, field: str = "text") -> None:
        optional("rdkit.Chem.rdShapeAlign", needed_by="this ranker", package="rdkit", install=RANKERS)
        self.field = field

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> list[float]:
        smiles = str(query[self.field])
        return [overlap(smiles, str(candidate.fields[self.field])) for candidate in candidates]


def overlap(smiles: str, other: str) -> float:
    """The score of two molecules; 1 for a molecule and itself.

    Raises:
        ValueError: if one is no molecule, or has no conformation.
    """
    from rdkit import Chem
    from rdkit.Chem import rdShapeAlign

    moved = Chem.Mol(in_space(other))  # a copy, as alignment moves it
    shape, colour = rdShapeAlign.AlignMol(in_space(smiles), moved, opt_param=EQUAL_WEIGHT)
    return float(shape + colour) / 2


@lru_cache(maxsize=MOST_KEPT)
def in_space(smiles: str) -> Any:
    """A molecule with its conformation, without hydrogens.

    Raises:
        ValueError: if the text is no molecule, or it has no conformation.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdDistGeom

    message = f"a molecule must have a conformation in space, got none for {smiles!r}"
    with rdBase.BlockLogs():
        flat = Chem.MolFromSmiles(smiles)
        if flat is None or not flat.GetNumAtoms():
            raise ValueError(f"a molecule must be a SMILES string, got {smiles!r}")
        molecule = Chem.AddHs(flat)
        try:
            number = rdDistGeom.EmbedMolecule(molecule, randomSeed=SEED)
        except RuntimeError:  # what no molecule can be: rings through rings
            raise ValueError(message) from None
        if number < 0:
            raise ValueError(message)
        return Chem.RemoveHs(molecule)
