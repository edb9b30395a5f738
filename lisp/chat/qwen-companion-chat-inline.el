;;; qwen-companion-chat-inline.el --- Emphasis, code and links inside a line  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Finds Markdown's markup inside a line, as CommonMark defines it (section 6,
;; with the algorithm of its appendix for emphasis).  A line is parsed with the
;; preceding lines of its paragraph.  Later lines may still be missing: text
;; that they could turn into code or HTML is left alone.
;;
;; Markup may be hidden, so a mistake would change the meaning of an answer: in
;; doubt, a character is not markup.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defface qwen-companion-chat-code
  '((((class color) (min-colors 88) (background light))
     :inherit fixed-pitch :background "grey96" :extend t)
    (((class color) (min-colors 88) (background dark))
     :inherit fixed-pitch :background "grey14" :extend t)
    (t :inherit fixed-pitch))
  "Face of blocks of code in a chat."
  :group 'qwen-companion)

(cl-defstruct (qwen-companion-chat-code
               (:copier nil)
               (:constructor qwen-companion-chat-inline-make-code))
  "A block of code in the untrusted LANGUAGE, a string.
FENCE is its opening fence, MARGIN the number of characters before FENCE
and before each line.  CLOSED is non-nil after the closing fence.  COLOURED
is t when the block has the faces of its language, `pending' when it will
get them.  The text of the block has this struct as a property."
  language fence (margin 0) closed coloured)

(defconst qwen-companion-chat-inline--lines 200
  "Longest paragraph in lines that is parsed for markup.")

(cl-defstruct (qwen-companion-chat-inline--run
               (:copier nil)
               (:constructor qwen-companion-chat-inline--make-run))
  "A run of LENGTH delimiters CHAR at START; it was WHOLE characters long.
OPENS and CLOSES say whether emphasis may begin and end there."
  char start length whole opens closes)

(defconst qwen-companion-chat-inline--bullet "\\(?:[-*+]\\|1[.)]\\)[ \t]+[^ \t\n]"
  "Matches the beginning of an item of a list that may end a paragraph.")

(defconst qwen-companion-chat-inline-item "\\(?:[-*+]\\|[0-9]\\{1,9\\}[.)]\\)\\(?:[ \t]+\\|$\\)"
  "Matches the marker of an item of a list.")

(defconst qwen-companion-chat-inline--tag "<\\(?:[A-Za-z][^<>]*\\|[/!?][^<>]*\\)>"
  "Matches an address in angle brackets, or a tag of HTML.")

;;; Paragraphs

(defun qwen-companion-chat-inline--text-p (position)
  "Return non-nil when the line at POSITION is text of the same answer as point.
Code and the end of a block are not text."
  (and (equal (get-text-property position 'qwen-companion-chat-voice)
              (get-text-property (point) 'qwen-companion-chat-voice))
       (not (get-text-property position 'qwen-companion-chat-code))
       (not (get-text-property position 'qwen-companion-chat-fence))))

(defun qwen-companion-chat-inline-in-list-p (column)
  "Return non-nil if text at COLUMN of the line at point may belong to a list.
That is, an item above has its text at most three columns to the left, and
no text in between is further to the left."
  (save-excursion
    (let ((left column) found)
      (while (and (not found) (> left 0) (> (point) (point-min))
                  (qwen-companion-chat-inline--text-p (1- (point)))
                  (zerop (forward-line -1)))
        (unless (looking-at-p "[ \t>]*$")
          (skip-chars-forward " \t>")
          (when (< (current-column) left)
            (setq left (current-column))
            (when (looking-at qwen-companion-chat-inline-item)
              (goto-char (match-end 0))
              (setq found (<= (current-column) column (+ 3 (current-column))))))
          (forward-line 0)))
      found)))

(defun qwen-companion-chat-inline--content ()
  "Return the beginning of the text of the line at point, after markers of lists.
Return nil for code, which is indented by four columns more."
  (save-excursion
    (skip-chars-forward " \t")
    (let ((code nil))
      (while (and (not code)
                  (looking-at (concat "\\(?:>\\|" qwen-companion-chat-inline-item "\\)[ \t]*")))
        (setq code (string-match-p "\\(?: \\{5\\}\\|\t\\)" (match-string 0)))
        (goto-char (match-end 0)))
      (and (not code) (point)))))

(defun qwen-companion-chat-inline--paragraph ()
  "Return the beginning of the paragraph of the line at point.
Return nil if that is far above, or if the text is code or HTML."
  (save-excursion
    (let ((left qwen-companion-chat-inline--lines) begun)
      (while (not (or begun (< left 0)))
        (setq begun
              (or (looking-at-p (concat "[ \t>]*" qwen-companion-chat-inline--bullet))
                  (looking-at-p " \\{0,3\\}#\\{1,6\\} ")
                  (bobp)
                  (not (qwen-companion-chat-inline--text-p (1- (point))))
                  (save-excursion
                    (forward-line -1)
                    (or (looking-at-p "[ \t>]*$")
                        (looking-at-p " \\{0,3\\}#\\{1,6\\} ")))))
        (unless begun
          (forward-line -1)
          (cl-decf left)))
      (skip-chars-forward " \t>")
      (and begun
           (not (looking-at-p "<[A-Za-z/!?]"))
           (let ((column (current-column)))
             (forward-line 0)
             (or (< column 4)
                 (qwen-companion-chat-inline-in-list-p (current-indentation))))
           (point)))))

;;; Tokens

(defun qwen-companion-chat-inline--kind (char)
  "Return `space' or `punctuation' for CHAR, nil for any other or none."
  (cond ((or (null char) (memq char '(?\s ?\t ?\n ?\f ?\r))
             (eq 'Zs (get-char-code-property char 'general-category)))
         'space)
        ((if (< char 128)
             (not (or (<= ?0 char ?9) (<= ?a (downcase char) ?z)))
           (memq (get-char-code-property char 'general-category)
                 '(Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So)))
         'punctuation)))

(defun qwen-companion-chat-inline--read-run (begin end)
  "Return the run of delimiters at point; skip it.
The text is from BEGIN to END; BEGIN is nil for the text of a link."
  (let* ((start (point))
         (char (char-after))
         (length (skip-chars-forward (string char) end))
         (before (if (eql start begin) 'space (qwen-companion-chat-inline--kind (char-before start))))
         (after (if (and begin (= (point) end))
                    'space
                  (qwen-companion-chat-inline--kind (char-after))))
         (left (and (not (eq after 'space)) (or (not (eq after 'punctuation)) before)))
         (right (and (not (eq before 'space)) (or (not (eq before 'punctuation)) after)))
         (strict (eq char ?_)))
    (unless (and (eq char ?~) (/= length 2))
      (qwen-companion-chat-inline--make-run
       :char char :start start :length length :whole length
       :opens (and left (or (not strict) (not right) (eq before 'punctuation)))
       :closes (and right (or (not strict) (not left) (eq after 'punctuation)))))))

(defun qwen-companion-chat-inline--code-end (length end)
  "Return the end of the code opened by LENGTH backticks before point, or nil.
Search for LENGTH closing backticks before END."
  (save-excursion
    (let (found)
      (while (and (not found) (search-forward "`" end t))
        (backward-char)
        (when (= length (skip-chars-forward "`" end))
          (setq found (point))))
      found)))

(defun qwen-companion-chat-inline--tokens (begin end inside)
  "Return the code, links and delimiters of the text from BEGIN to END.
Return them as (SPANS . RUNS), where SPANS are (KIND START END . MORE).
INSIDE is non-nil for the text of a link.  Stop where later lines could
turn the rest into code, HTML or a link."
  (let (spans runs stop)
    (goto-char begin)
    (while (and (not stop)
                (re-search-forward "[]\\`*_~[<]" end t))
      (let ((start (match-beginning 0)))
        (pcase (char-after start)
          (?\\ (when (and (< (point) end)
                          (eq 'punctuation (qwen-companion-chat-inline--kind (char-after))))
                 (forward-char)))
          (?` (skip-chars-forward "`" end)
              (if-let* ((length (- (point) start))
                        (close (qwen-companion-chat-inline--code-end length end)))
                  (progn (push (list 'code start close length) spans)
                         (goto-char close))
                (setq stop t)))
          (?< (goto-char start)
              (cond ((looking-at qwen-companion-chat-inline--tag)
                     (goto-char (min end (match-end 0))))
                    ((looking-at-p "<[A-Za-z/!?]") (setq stop t))
                    (t (forward-char))))
          (?\[ (goto-char start)
               (if (looking-at "\\[\\([^][`<>\\\n]+\\)\\](\\([^][() \t\n<>\\`]+\\))")
                   (let ((after (match-end 0)) (text-end (match-end 1)))
                     (push (list 'link start after text-end) spans)
                     ;; Between the brackets, emphasis begins and ends on its own.
                     (setq spans (append (qwen-companion-chat-inline--parse (1+ start) text-end t)
                                         spans))
                     (goto-char after))
                 (forward-char)
                 ;; Another form of link may begin here, or end in a line below.
                 (setq stop (not (looking-at-p "[^][\\\n]*\\][^][(\n]")))))
          (?\] (setq stop (and (< (point) end) (memq (char-after) '(?\( ?\[)))))
          ((or ?* ?_ ?~)
           (goto-char start)
           (when-let* ((run (qwen-companion-chat-inline--read-run (and (not inside) begin) end)))
             (push run runs))))))
    (cons spans (nreverse runs))))

;;; Emphasis

(defun qwen-companion-chat-inline--fits-p (opener closer)
  "Return non-nil when CLOSER may end the emphasis begun by OPENER."
  (pcase-let (((cl-struct qwen-companion-chat-inline--run (whole one) (closes both)) opener)
              ((cl-struct qwen-companion-chat-inline--run (whole other) (opens too)) closer))
    (and (qwen-companion-chat-inline--run-opens opener)
         (> (qwen-companion-chat-inline--run-length opener) 0)
         (eq (qwen-companion-chat-inline--run-char opener)
             (qwen-companion-chat-inline--run-char closer))
         (not (and (or both too)
                   (zerop (% (+ one other) 3))
                   (not (and (zerop (% one 3)) (zerop (% other 3)))))))))

(defun qwen-companion-chat-inline--emphasis (delimiters)
  "Return the spans of emphasis (KIND START END WIDTH) between DELIMITERS."
  (let (before spans)
    (dolist (closer delimiters)
      (let (opener)
        (while (and (qwen-companion-chat-inline--run-closes closer)
                    (> (qwen-companion-chat-inline--run-length closer) 0)
                    (setq opener (cl-find-if
                                  (lambda (each) (qwen-companion-chat-inline--fits-p each closer))
                                  before)))
          (let* ((width (min 2
                             (qwen-companion-chat-inline--run-length opener)
                             (qwen-companion-chat-inline--run-length closer)))
                 (start (- (+ (qwen-companion-chat-inline--run-start opener)
                              (qwen-companion-chat-inline--run-length opener))
                           width)))
            (push (list (cond ((eq ?~ (qwen-companion-chat-inline--run-char closer)) 'struck)
                              ((= width 2) 'strong)
                              (t 'emphasis))
                        start
                        (+ (qwen-companion-chat-inline--run-start closer) width)
                        width)
                  spans)
            (cl-decf (qwen-companion-chat-inline--run-length opener) width)
            (cl-decf (qwen-companion-chat-inline--run-length closer) width)
            (cl-incf (qwen-companion-chat-inline--run-start closer) width)
            ;; Delimiters between the two cannot be paired with others.
            (setq before (memq opener before)))))
      (push closer before))
    (cl-remove-if
     (lambda (span)
       (cl-some (lambda (run)
                  (and (qwen-companion-chat-inline--run-closes run)
                       (> (qwen-companion-chat-inline--run-length run) 0)
                       (< (nth 1 span) (qwen-companion-chat-inline--run-start run) (nth 2 span))))
                delimiters))
     spans)))

(defun qwen-companion-chat-inline--pattern-p (span)
  "Return non-nil when SPAN, emphasis, may come from file names or code.
CommonMark finds emphasis in \"a/*.o b/*.a\", \"2*3*4\" and \"__main__\".
Ignore letters of scripts that are written without spaces."
  (pcase-let ((`(,_ ,start ,end ,width) span))
    (cl-flet ((at-p (set position)
                (goto-char position)
                (looking-at set)))
      (or (and (> start (point-min)) (at-p "[]0-9A-Za-z/\\).=$%&]" (1- start)))
          (at-p "[/.,;=)]" (+ start width))
          (at-p "[/(=]" (- end width 1))
          (and (at-p "__[A-Za-z0-9_]+__" start) (= end (match-end 0)))
          (at-p "[[0-9A-Za-z/\\(=$%&]" end)))))

;;; Whole lines

(defun qwen-companion-chat-inline-spans (end row)
  "Return the markup of the line at point, which ends at END.
ROW is non-nil for a row of a table, whose cells are parsed one by one.
Return a list of (KIND START END WIDTH): `code', `emphasis', `strong' and
`struck' begin and end with markup of WIDTH characters; the text of a `link'
ends at WIDTH, a position, and an `address' has none."
  (save-excursion
    (save-match-data
      (if row
          (let (spans)
            (while (< (point) end)
              (let* ((start (point))
                     (cell (if (re-search-forward "\\(?:\\=\\|[^\\]\\)|" end t) (1- (point)) end)))
                (setq spans (append (save-excursion
                                      (qwen-companion-chat-inline--parse start cell))
                                    spans))
                (goto-char (min end (1+ cell)))))
            spans)
        (let ((here (point)))
          (when-let* ((paragraph (qwen-companion-chat-inline--paragraph))
                      (begin (progn (goto-char paragraph)
                                    (qwen-companion-chat-inline--content))))
            (when (<= begin end)
              (cl-remove-if (lambda (span) (< (nth 1 span) here))
                            (qwen-companion-chat-inline--parse begin end)))))))))

(defun qwen-companion-chat-inline--parse (begin end &optional inside)
  "Return the spans of the text from BEGIN to END; of a link if INSIDE is non-nil."
  (pcase-let* ((`(,spans . ,runs) (qwen-companion-chat-inline--tokens begin end inside))
               (addresses (qwen-companion-chat-inline--addresses begin end spans)))
    (append addresses spans
            (cl-remove-if (lambda (span)
                            (or (qwen-companion-chat-inline--pattern-p span)
                                ;; An address keeps its characters.
                                (cl-some (pcase-lambda (`(,_ ,start ,end))
                                           (or (< start (nth 1 span) end)
                                               (< start (nth 2 span) end)))
                                         addresses)))
                          (qwen-companion-chat-inline--emphasis runs)))))

(defun qwen-companion-chat-inline--addresses (begin end spans)
  "Return the spans of bare addresses from BEGIN to END, outside of SPANS."
  (let (addresses)
    (goto-char begin)
    (while (re-search-forward "https?://[^][ \t\n<>\"`)*]+" end t)
      (let ((start (match-beginning 0)))
        (unless (cl-some (lambda (span) (<= (nth 1 span) start (nth 2 span))) spans)
          (push (list 'address start (point)) addresses))))
    addresses))

(provide 'qwen-companion-chat-inline)
;;; qwen-companion-chat-inline.el ends here
