# A form is made, filled, read, and put together.
set -eu
S="$SKILL/scripts"
cd /tmp
python3 - <<'P'
from reportlab.pdfgen import canvas
c = canvas.Canvas("a.pdf")
c.drawString(72, 700, "Notice period: three months")
c.acroForm.textfield(name="name", x=72, y=600, width=200)
c.save()
P
python3 "$S/inspect_pdf.py" a.pdf | grep "form: 1 fields"
python3 "$S/text.py" a.pdf | grep "three months"
echo '{"name": "Ada"}' > v.json
python3 "$S/form.py" fill a.pdf v.json --out b.pdf
python3 "$S/form.py" list b.pdf | grep '"Ada"'
python3 "$S/arrange.py" --out c.pdf a.pdf b.pdf:1@90 | grep "2 pages"
python3 "$S/pages.py" c.pdf --out shots
