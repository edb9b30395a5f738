;;; hunks.el --- Random reviews against an oracle  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make fuzz'.  Each case is a pair of odd texts, one on disk and one
;; proposed, and a dozen random actions in the review hunk by hunk: hunks
;; are dropped, brought back and split, line ends kept, both texts edited.
;; After each action the oracle reads what is on the screen as a stranger
;; would, applies it to the bytes on disk, and compares the result with the
;; text that accepting would send now.  For a part of the cases, the program
;; patch is asked as well.
;;
;; The number of a case is its seed.  One that has failed is put into
;; `hunks-fuzz-failed', which every run begins with.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-test-helper)
(require 'qwen-companion-review-unified-test)
(require 'shown (expand-file-name "shown" (file-name-directory (macroexp-file-name))))

(defconst hunks-fuzz-failed '(20 22 32 34 142 276 845)
  "The numbers of cases that have failed once.")

(defun hunks-fuzz--one-of (&rest choices)
  "Return one of CHOICES."
  (nth (random (length choices)) choices))

;;; Texts

(defconst hunks-fuzz--words
  '("one" "two" "three" "" "  two" "- a/x" "-- a/x" "++ b/x" "@ -1 +1 @@"
    "\\ No newline at end of file" "\tü" "# one")
  "Texts for lines: few, so that they repeat, and some that look like a patch.")

(defun hunks-fuzz--random-lines (count)
  "Return a list of COUNT random lines."
  (cl-loop repeat count
           collect (apply #'hunks-fuzz--one-of hunks-fuzz--words)))

(defun hunks-fuzz--random-edit (lines)
  "Return LINES with one random edit: inserted, removed, replaced or moved ones."
  (let* ((from (random (1+ (length lines))))
         (to (min (length lines) (+ from (random 4))))
         (run (cl-subseq lines from to))
         (rest (append (cl-subseq lines 0 from) (cl-subseq lines to)))
         (place (random (1+ (length rest)))))
    (pcase (random 4)
      (0 (append (cl-subseq lines 0 from)
                 (hunks-fuzz--random-lines (1+ (random 3)))
                 (cl-subseq lines from)))
      (1 rest)
      (2 (append (cl-subseq lines 0 from)
                 (hunks-fuzz--random-lines (random 4))
                 (cl-subseq lines to)))
      (_ (append (cl-subseq rest 0 place) run (cl-subseq rest place))))))

(defun hunks-fuzz--line ()
  "Return a random line without its end."
  (if (zerop (random 4))
      (hunks-fuzz--one-of "a\fb" "a\0b" "\ufeff" "\r" "a\rb" "\\ No newline at end of file"
                          "@@ -1,1 +1,1 @@" "--- a/x" "+++ b/x" "# one" "ü\t中😀"
                          (make-string 6000 ?x) "\u202Ex" "<<<<<<< yours")
    (hunks-fuzz--one-of "" "one" "two" "three" "  four" "five" "}")))

(defun hunks-fuzz--lines ()
  "Return a list of random lines."
  (pcase (random 12)
    (0 nil)
    (1 (list (hunks-fuzz--line)))
    ;; Many small hunks.
    (2 (cl-loop for n from 1 to 90 collect (format "%d" n)))
    (_ (cl-loop repeat (random 16) collect (hunks-fuzz--line)))))

(defun hunks-fuzz--edit (lines)
  "Return LINES, edited at random."
  (if (> (length lines) 80)
      (cl-loop for line in lines
               unless (zerop (random 9)) collect (if (zerop (random 5)) (hunks-fuzz--line) line))
    (dotimes (_ (random 5))
      (setq lines (hunks-fuzz--random-edit lines)))
    lines))

(defun hunks-fuzz--text (lines style open mark)
  "Return LINES as a text.
STYLE is what ends a line or `mixed'; OPEN means that the last has no
end, MARK that a byte order mark comes first."
  (let ((text (mapconcat (lambda (line)
                           (concat line (if (eq style 'mixed)
                                            (hunks-fuzz--one-of "\n" "\r\n" "\r\r\n")
                                          style)))
                         lines "")))
    (concat (if mark "\ufeff" "")
            (if (and open (string-suffix-p "\n" text)) (substring text 0 -1) text))))

(defun hunks-fuzz--pair ()
  "Return a random pair of texts, (OLD . NEW)."
  (let* ((lines (hunks-fuzz--lines))
         (style (hunks-fuzz--one-of "\n" "\n" "\r\n" 'mixed "\r"))
         (mark (zerop (random 6))))
    (cons (hunks-fuzz--text lines style (zerop (random 3)) mark)
          (hunks-fuzz--text (hunks-fuzz--edit lines)
                            (if (zerop (random 3)) (hunks-fuzz--one-of "\n" "\r\n" 'mixed) style)
                            (zerop (random 3))
                            (if (zerop (random 6)) (not mark) mark)))))

;;; The oracle

(defun hunks-fuzz--style (text)
  "Return what ends the lines of TEXT, `mixed', or nil when nothing does."
  (let ((ends (cl-remove-duplicates
               (cl-loop for line in (shown-split text)
                        when (string-suffix-p "\n" line)
                        collect (if (string-suffix-p "\r\n" line) "\r\n" "\n"))
               :test #'equal)))
    (if (cdr ends) 'mixed (car ends))))

(defun hunks-fuzz--expected (old new shown plain)
  "Return the text that SHOWN promises, OLD being on disk and NEW proposed.
PLAIN is non-nil when both sides are shown without carriage returns."
  (pcase-let* ((`(,line-ends . ,hunks) shown)
               (old-mark (string-prefix-p "\ufeff" old))
               (old-text (if old-mark (substring old 1) old))
               (new-mark (string-prefix-p "\ufeff" new))
               (new-text (if new-mark (substring new 1) new))
               (text (shown-applied
                      (if plain (string-replace "\r\n" "\n" old-text) old-text) hunks))
               (as-on-disk (and line-ends (string-match-p "as on disk" line-ends)))
               (differ (lambda (what) (and line-ends (string-match-p what line-ends)))))
    (when plain
      (let* ((old-end (hunks-fuzz--style old-text))
             (new-end (hunks-fuzz--style new-text))
             (end (if (and (funcall differ "[Ll]ine ends") as-on-disk)
                      old-end
                    (or new-end old-end "\n"))))
        (unless (funcall differ "[Ll]ine ends")
          (shown-must (or (null old-end) (null new-end) (equal old-end new-end))))
        (setq text (string-replace "\n" end text))))
    (let ((mark (if (and (funcall differ "[Bb]yte order mark") as-on-disk)
                    old-mark
                  new-mark)))
      (unless (or (string-empty-p old-text) (string-empty-p new)
                  (funcall differ "[Bb]yte order mark"))
        (shown-must (eq old-mark new-mark)))
      (when (string-empty-p new)
        (setq mark old-mark))
      (if (and mark (or (equal new "\ufeff") (not (string-empty-p text)))) (concat "\ufeff" text) text))))

;;; Cases

(defun hunks-fuzz--check (proposal old new)
  "Compare what is shown of PROPOSAL with what would be sent.
OLD is on disk, NEW was proposed."
  (while (let ((place (text-property-any (point-min) (point-max) 'qwen-companion-hunks-view-action
                                         #'qwen-companion-review-unified--show-more)))
           (when place
             (goto-char place)
             (qwen-companion-test-press "RET")
             t)))
  (should-not (text-property-any (point-min) (point-max) 'qwen-companion-hunks-view-action
                                 #'qwen-companion-hunks-view--show-whole))
  (let ((sent (qwen-companion-proposal-text proposal))
        (shown (shown-hunks))
        wrong)
    ;; Once line ends were shown exactly, they may have to stay so.
    (unless (cl-some (lambda (plain)
                       (condition-case err
                           (equal sent (hunks-fuzz--expected old new shown plain))
                         (shown-wrong (push err wrong) nil)))
                     (if (memq 'mixed (mapcar #'hunks-fuzz--style (list old new)))
                         '(nil)
                       '(t nil)))
      (let ((print-escape-newlines t)
            (print-escape-control-characters t))
        (ert-fail (replace-regexp-in-string
                   "x\\{50,\\}" "xxx..."
                   (prin1-to-string
                    (list :sent sent :on-disk old :wrong wrong
                          :shown (buffer-substring-no-properties (point-min) (point-max))))))))))

(defun hunks-fuzz--hunk ()
  "Go to a random line of a random hunk, if there is one."
  (goto-char (point-min))
  (dotimes (_ (random 6))
    (ignore-errors (qwen-companion-test-press "n")))
  (forward-line (random 6)))

(defun hunks-fuzz--act (proposal)
  "Do one random thing in the review of PROPOSAL; return what it was."
  (let ((action (hunks-fuzz--one-of 'drop 'drop 'drop 'restore 'restore 'split 'split
                                    'context 'line-ends 'edit 'undo 'disk)))
    (hunks-fuzz--hunk)
    (condition-case nil
        (pcase action
          ('drop (qwen-companion-test-press "k"))
          ('restore (qwen-companion-test-press "u"))
          ('split (qwen-companion-test-press "s"))
          ('context (qwen-companion-test-press (hunks-fuzz--one-of "+" "-" "-")))
          ('line-ends (qwen-companion-diff-toggle-line-ends))
          ((or 'edit 'undo)
           (qwen-companion-test-editing proposal
             (undo-boundary)
             (goto-char (1+ (random (1+ (buffer-size)))))
             (if (eq action 'undo)
                 (let (last-command this-command)
                   (undo))
               (pcase (random 5)
                 (0 (insert (hunks-fuzz--one-of "x" "\n" "y\n" "\nz")))
                 (1 (goto-char (point-max)) (insert (hunks-fuzz--one-of "x" "\n" "y\n")))
                 (2 (delete-region (line-beginning-position) (line-end-position)))
                 (3 (delete-region (line-beginning-position)
                                   (min (point-max) (1+ (line-end-position)))))
                 (_ (when (eq ?\n (char-before (point-max)))
                      (delete-region (1- (point-max)) (point-max))))))
             (undo-boundary))
           (qwen-companion-review-refresh 'unified proposal)))
      (user-error nil))
    action))

(defun hunks-fuzz-case (seed)
  "Check the random case SEED, a number."
  (random (format "hunks %d" seed))
  (pcase-let* ((`(,old . ,new) (hunks-fuzz--pair))
               (qwen-companion-unified-context (random 4))
               (actions ()))
    (ert-info ((let ((print-escape-newlines t) (print-escape-control-characters t))
                 (replace-regexp-in-string
                  "x\\{50,\\}" "xxx..." (prin1-to-string (list :seed seed :old old :new new)))))
      (qwen-companion-review-unified-test-with (list (list "a.txt" old))
        (let ((proposal (qwen-companion-review-unified-test--review new))
              (original new)
              (first old)
              touched)
          (hunks-fuzz--check proposal old new)
          (should (equal new (qwen-companion-proposal-text proposal)))
          (when (and (zerop (mod seed 4))
                     (not (string-match-p "\0" (concat old new)))
                     (equal (hunks-fuzz--style old) (hunks-fuzz--style new))
                     (not (string-prefix-p "\ufeff" old)))
            (let ((line-end (if (equal "\r\n" (hunks-fuzz--style old)) "\r\n" "\n")))
              (should (equal (string-remove-prefix "\ufeff" new)
                             (qwen-companion-review-unified-test--patched
                              old (qwen-companion-review-unified-test--shown-patch line-end))))))
          (dotimes (_ 12)
            (let ((action (hunks-fuzz--act proposal)))
              (push action actions)
              (when (memq action '(edit undo))
                (setq touched t))
              (when (eq action 'disk)
                (setq touched t
                      old (hunks-fuzz--text (hunks-fuzz--edit (split-string old "[\ufeff\r\n]+"))
                                            (hunks-fuzz--one-of "\n" "\r\n" 'mixed)
                                            (zerop (random 3)) (zerop (random 6))))
                (qwen-companion-test-write "a.txt" old (length actions))
                (qwen-companion-review-file-written (expand-file-name "a.txt")))
              (set-buffer (window-buffer))
              (ert-info ((format "%S" (reverse actions)))
                (hunks-fuzz--check proposal old original))))
          (unless touched
            (hunks-fuzz--all "k")
            ;; Of a file that is empty, no mark is left.
            (should (equal (if (equal first "\ufeff") "" first)
                           (qwen-companion-proposal-text proposal)))
            (hunks-fuzz--all "u")
            (should (equal original (qwen-companion-proposal-text proposal)))
            (should-not (qwen-companion-proposal-edited-p proposal))))))))

(defun hunks-fuzz--all (key)
  "Press KEY, which drops or brings back, on all there is."
  (goto-char (point-min))
  (when (re-search-forward "^\\\\ \\(Line\\|Byte\\)" nil t)
    (ignore-error user-error (qwen-companion-test-press key)))
  (goto-char (point-min))
  (while (qwen-companion-hunks-view-goto-hunk (point) nil)
    (ignore-error user-error (qwen-companion-test-press key))))

(defun hunks-fuzz-run (from count)
  "Check the cases that have failed once, and COUNT others with seeds FROM on."
  (dolist (seed (append hunks-fuzz-failed (number-sequence from (+ from count -1))))
    (hunks-fuzz-case seed)))

(defun hunks-fuzz-main (from count)
  "Check COUNT cases with seeds FROM on, print what fails, and leave Emacs."
  (let ((failed 0)
        (cases (append hunks-fuzz-failed (number-sequence from (+ from count -1)))))
    (dolist (seed cases)
      (let ((test (make-ert-test :body (lambda () (hunks-fuzz-case seed)))))
        (unless (ert-test-passed-p
                 (let ((inhibit-message t))
                   (ert-run-test test)))
          (cl-incf failed)
          (princ (format "case %d failed: %s\n" seed
                         (ert-test-result-with-condition-condition
                          (ert-test-most-recent-result test))))
          (dolist (info (ert-test-result-with-condition-infos
                         (ert-test-most-recent-result test)))
            (princ (format "  %s\n" (cdr info)))))))
    (princ (format "%d random reviews, %d failed\n" (length cases) failed))
    (kill-emacs (if (zerop failed) 0 1))))

(provide 'hunks-fuzz)
;;; hunks.el ends here
