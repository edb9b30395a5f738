;;; shown.el --- What a review hunk by hunk shows  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; For random runs: the screen is read as a stranger would, and nothing of ours
;; is asked.

;;; Code:

(require 'cl-lib)

(define-error 'shown-wrong "What is shown is wrong")

(defmacro shown-must (form)
  "Signal `shown-wrong' unless FORM is non-nil.
ERT takes its own failures as final, also where they are handled."
  `(unless ,form
     (signal 'shown-wrong '(,form))))

(defun shown-split (text)
  "Return the lines of TEXT, each with its line feed; the last may lack it."
  (let (lines (start 0))
    (while (< start (length text))
      (let ((end (or (cl-position ?\n text :start start) (1- (length text)))))
        (push (substring text start (1+ end)) lines)
        (setq start (1+ end))))
    (nreverse lines)))

(defun shown-hunks ()
  "Return what is on the screen as (LINE-ENDS . HUNKS).
LINE-ENDS is the line about those, or nil.  A hunk is (OLD DROPPED LINES
NEW), LINES being pairs of a sign and a line with its line feed, if it
has one."
  (let ((lines (split-string (buffer-substring-no-properties (point-min) (point-max)) "\n"))
        line-ends hunks)
    (shown-must (string-prefix-p "--- " (pop lines)))
    (shown-must (string-prefix-p "+++ " (pop lines)))
    (while (and lines (not (string-prefix-p "# " (car lines))))
      (let ((line (pop lines)))
        (cond
         ((string-match "\\`@@ -\\([0-9]+\\),\\([0-9]+\\) \\+\\([0-9]+\\),\\([0-9]+\\) @@\\(.* dropped, u\\)?" line)
          (push (list (string-to-number (match-string 1 line)) (match-string 5 line) nil
                      (string-to-number (match-string 3 line))
                      (string-to-number (match-string 2 line))
                      (string-to-number (match-string 4 line)))
                hunks))
         ((string-match-p "\\`\\\\ \\(Line ends\\|Byte order mark\\)" line)
          (shown-must (null hunks))
          (setq line-ends line))
         ((equal line "\\ No newline at end of file")
          (cl-callf (lambda (text) (substring text 0 -1))
              (cadr (car (nth 2 (car hunks))))))
         ((and hunks (string-match-p "\\`[- +]" line))
          (push (list (aref line 0) (concat (substring line 1) "\n"))
                (nth 2 (car hunks))))
         (t (shown-must (member line '("" "No differences left.")))))))
    (dolist (hunk hunks)
      (cl-callf nreverse (nth 2 hunk)))
    (cons line-ends (nreverse hunks))))

(defun shown-applied (old hunks)
  "Return what HUNKS make of the text OLD; each must fit exactly where it says."
  (let ((lines (vconcat (shown-split old)))
        (at 0)
        (result ()))
    (pcase-dolist (`(,start ,dropped ,shown ,new-start ,old-count ,new-count) hunks)
      (let ((from (if (zerop old-count) start (1- start))))
        (shown-must (<= at from))
        (while (< at from)
          (push (aref lines at) result)
          (cl-incf at))
        (shown-must (= old-count (cl-count-if (lambda (line) (memq (car line) '(?\s ?-))) shown)))
        (shown-must (= new-count (cl-count-if (lambda (line) (memq (car line) '(?\s ?+))) shown)))
        (unless dropped
          (shown-must (= (length result) (if (zerop new-count) new-start (1- new-start)))))
        (pcase-dolist (`(,sign ,line) shown)
          (when (memq sign '(?\s ?-))
            (shown-must (equal line (aref lines at)))
            (cl-incf at))
          (when (or (eq sign ?\s) (eq sign (if dropped ?- ?+)))
            (push line result)))))
    (while (< at (length lines))
      (push (aref lines at) result)
      (cl-incf at))
    (dolist (line (cdr result))
      ;; Nothing comes behind a line without an end.
      (shown-must (string-suffix-p "\n" line)))
    (mapconcat #'identity (nreverse result) "")))

(provide 'shown)
;;; shown.el ends here
