;;; follow.el --- What changing a buffer costs, ours beside Emacs's own  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows, for texts of 1 MB that a CLI has changed, how long
;; each step blocks Emacs until a buffer holds the new one: handing both
;; texts to the Python process, reading its edits, applying them.  Beside
;; that, in the same run: the bare insertions and deletions of these edits;
;; `replace-buffer-contents' with 0.1 seconds to compare; and the same with
;; 2 seconds, which is what `revert-buffer-with-fine-grain' does.  "Point"
;; tells who kept point at its words.  The ratios are what can be compared
;; between machines.

;;; Code:

(require 'cl-lib)
(require 'measure)
(require 'qwen-companion)

(defconst follow-bench-lines 20000
  "Lines of a text.")

(defun follow-bench--text (line)
  "Return a text whose lines are what the function LINE makes of numbers."
  (mapconcat line (number-sequence 1 follow-bench-lines) ""))

(defun follow-bench--line (number)
  "Return the line NUMBER of the text as it was."
  (format "    value_%06d = compute(first, second, third)\n" number))

(defun follow-bench--buffer (text)
  "Return a new buffer with TEXT, with undo, point in the middle of a word."
  (with-current-buffer (generate-new-buffer " *follow bench*")
    (insert text)
    (buffer-enable-undo)
    (setq buffer-undo-list nil)
    (goto-char (point-min))
    (search-forward "_010000 = com")
    (current-buffer)))

(defun follow-bench--edits (old new)
  "Return (ASK READ MERGED): what the edits from OLD to NEW cost, and these."
  (let (ask read merged)
    (cl-letf* ((on-merged (symbol-function 'qwen-companion-merge-on-merged))
               ((symbol-function 'qwen-companion-merge-on-merged)
                (lambda (payload)
                  (setq read (measure-ms (lambda () (funcall on-merged payload))))
                  nil)))
      (setq ask (measure-ms
                 (lambda ()
                   (qwen-companion-merge-texts nil old new '("" "" "")
                                               (lambda (answer) (setq merged answer))))))
      (while (not read)
        (accept-process-output nil 0.1)))
    (list ask read merged)))

(defun follow-bench--change (text function)
  "Return (MS KEPT): what FUNCTION takes in a buffer with TEXT.
KEPT is non-nil when point is still at its word."
  (let ((buffer (follow-bench--buffer text)))
    (with-current-buffer buffer
      (prog1 (list (measure-ms function)
                   (looking-at-p "pute(\\(?:first\\|renamed\\), second"))
        (kill-buffer buffer)))))

(defun follow-bench--bare (merged new)
  "Insert and delete what the edits of MERGED say; NEW has the new text."
  (let ((edits (qwen-companion-merge-result-edits merged)))
    (cl-loop for index from (- (length edits) 4) downto 0 by 4
             for from = (1+ (aref edits index))
             do
             (goto-char from)
             (insert-buffer-substring new (1+ (aref edits (+ index 2)))
                                      (1+ (aref edits (+ index 3))))
             (delete-region (point) (+ (point) (- (1+ (aref edits (+ index 1))) from))))))

(defun follow-bench--cycle (text new)
  "Return (MILLISECONDS KEPT) for the change from TEXT to the buffer NEW.
Both are lists: of ask, read, apply, bare, and the two of Emacs's own;
and who of apply and these kept point."
  (let ((old (follow-bench--buffer text)))
    (pcase-let* ((`(,ask ,read ,merged) (follow-bench--edits old new))
                 (`(,apply ,apply-kept)
                  (follow-bench--change
                   text (lambda () (qwen-companion-merge-apply merged new))))
                 (`(,bare ,_)
                  (follow-bench--change
                   text (lambda () (follow-bench--bare merged new))))
                 (`(,brief ,brief-kept)
                  (follow-bench--change
                   text (lambda () (replace-buffer-contents new 0.1))))
                 (`(,fine ,fine-kept)
                  (follow-bench--change
                   text (lambda () (replace-buffer-contents new 2.0)))))
      (kill-buffer old)
      (list (list ask read apply bare brief fine)
            (list apply-kept brief-kept fine-kept)))))

(defun follow-bench--report (what line)
  "Print a row for WHAT: each line has become what the function LINE makes."
  (let* ((text (follow-bench--text #'follow-bench--line))
         (new (follow-bench--buffer (follow-bench--text line)))
         (cycles (cl-loop repeat measure-rounds
                          collect (follow-bench--cycle text new))))
    (kill-buffer new)
    (pcase-let ((`(,ask ,read ,apply ,bare ,brief ,fine)
                 (measure-medians (mapcar #'car cycles))))
      (princ (format "%-14s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %12.2f %12.2f %12.2f   %s\n"
                     what ask read apply bare brief fine
                     (/ apply bare)
                     (/ (+ ask read apply) brief)
                     (/ (+ ask read apply) fine)
                     (mapconcat (lambda (kept) (if kept "yes" "no"))
                                (cadar (last cycles)) " ")))
      (measure-row (format "following a changed file of 1 MB, beside revert-buffer-with-fine-grain: %s" what)
                   (format "%.1f ms beside %.1f ms, %.2f times" (+ ask read apply) fine
                           (/ (+ ask read apply) fine))
                   "1.0"))))

(let* ((home (make-temp-file "follow-bench-" t))
       (process-environment (append (list (concat "HOME=" home) (concat "TMPDIR=" home)
                                          "QWEN_HOME")
                                    process-environment))
       (temporary-file-directory (file-name-as-directory home))
       (inhibit-message t))
  (unwind-protect
      (progn
        (qwen-companion-mode 1)
        (while (not (eq 'ready (qwen-companion-state)))
          (when (eq 'error (qwen-companion-state))
            (error "%s" (qwen-companion-backend-failure)))
          (accept-process-output nil 0.1))
        (princ (format "\n%-14s %8s %8s %8s %8s %8s %8s %12s %12s %12s   %s\n"
                       "milliseconds" "ask" "read" "apply" "bare" "r-b-c" "fine"
                       "apply/bare" "ours/r-b-c" "ours/fine" "point: ours r-b-c fine"))
        (follow-bench--report
         "100 lines" (lambda (number)
                       (concat (and (zerop (% number 200)) "# ")
                               (follow-bench--line number))))
        (follow-bench--report
         "indented" (lambda (number) (concat "  " (follow-bench--line number))))
        (follow-bench--report
         "word renamed" (lambda (number)
                          (string-replace "first" "renamed" (follow-bench--line number)))))
    (qwen-companion-mode -1)
    (while (cl-some (lambda (process) (equal "qwen-companion" (process-name process)))
                    (process-list))
      (accept-process-output nil 0.1))
    (delete-directory home t)))

;;; follow.el ends here
