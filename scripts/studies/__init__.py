"""A folder for each study, with its README. What several studies use is here: measured_csv.py and study_chart.py."""
