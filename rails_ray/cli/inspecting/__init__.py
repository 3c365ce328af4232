"""Look before you train: what a data set is, what is wrong with it, which recipes fit it, and what to beat.

| module      | what it says                                                                             |
|-------------|------------------------------------------------------------------------------------------|
| `tables`    | which tables there are, in how many files, with how many rows, bytes and columns         |
| `readings`  | which of the recipes' ways to read a data set its columns allow, and what others lack    |
| `problems`  | all that is wrong, in the sentences with which training would refuse it                  |
| `facts`     | statistics of items, queries, relevance and histories                                    |
| `verdicts`  | which recipes fit, with the number that decides                                          |
| `advice`    | what to try first, from the facts                                                        |
| `baselines` | what there is to beat: recipes that train nothing, or popularity                         |
| `timing`    | what a training and an encoding will take, from a few steps and a few items              |
| `sampling`  | parts of a data set                                                                      |
| `report`    | all of it together                                                                       |

A data set is read as training reads it: checked in every row, and mapped into memory from a file without a name. Rows
of texts and vectors are looked at by a sample. It runs in one process, without Ray.
"""
