"""pEBR, Tables 1 and 2 and Figure 2: which cut-off finds most in lists of the same average length?

Held fixed: data, encoder, steps, batches, seed and split. Per data set and seed one model of each loss is trained, and
the corpus ranked for the queries that calibrate and for those that measure. That is kept in --storage, so that
policies are compared again without training again. Every policy has one number (k, a score, a mass ...), which is
chosen so that the lists measured are of the same average length.

    python -m jobs.benches.pebr --folder FOLDER --storage FOLDER [--data wordnet ml-1m amazon-beauty] [--seeds 0 1 2]

FOLDER of --folder holds a folder per data set (jobs/benches/pebr_data.py says what is made of them).

Yes: over all queries, and over the third with most and the third with fewest relevant items, a policy of pEBR has a
higher recall and a higher precision than top-k and a fixed score, in the mean over seeds.
"""
