# Writes the examples in all four formats, and checks them.
set -eu
S="$SKILL/scripts"
for form in docx pdf; do
  python3 "$S/write_text.py" "$SKILL/examples/report.md" --out "/tmp/report.$form"
  python3 "$S/check.py" "/tmp/report.$form"
done
python3 "$S/write_slides.py" "$SKILL/templates/deck.yaml" --out /tmp/deck.pptx
python3 "$S/write_sheet.py" "$SKILL/templates/workbook.yaml" --out /tmp/workbook.xlsx
python3 "$S/fill.py" "$SKILL/templates/invoice.docx" "$SKILL/examples/invoice.yaml" --out /tmp/invoice.docx
for file in deck.pptx workbook.xlsx invoice.docx; do python3 "$S/check.py" "/tmp/$file"; done
