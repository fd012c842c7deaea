"""What the workbook costs, as ratios measured side by side in one run."""
