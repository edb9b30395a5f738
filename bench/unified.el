;;; unified.el --- What a review hunk by hunk costs  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows how long each step of a review hunk by hunk blocks
;; Emacs: taking over the answer of the comparison and showing the first
;; hunks, dropping the last change and bringing it back, moving to the next
;; hunk; and beside it `diff-mode' with the output of diff, and Ediff, on the
;; same texts in the same run.  Counted is the time of the processor, without
;; collecting garbage, which depends on all buffers there are, and without
;; the programs that compare.  Taking over and dropping should be below
;; 150 ms for the texts of 10 MB, the last three.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'measure)
(require 'qwen-companion)

(defvar unified-bench--compared nil
  "What was measured beside `diff-mode': (WHAT OURS DIFF-MODE), in milliseconds.")

(defun unified-bench--text (lines every)
  "Return a text of LINES lines of 50 bytes; every EVERYth is different."
  (mapconcat (lambda (number)
               (format "%06d %s\n" number
                       (make-string 42 (if (zerop (% number every)) ?y ?x))))
             (number-sequence 1 lines) ""))

(defun unified-bench--hunks (lines every)
  "Return what comparing finds between two such texts of LINES and EVERY.
The old text has no different lines."
  (if (= every 1)
      (list (list 1 lines 1 lines))
    (cl-loop for line from every to lines by every
             collect (list line 1 line 1))))

(defun unified-bench--diff-mode (old new)
  "Return the milliseconds for `diff-mode' on the files OLD and NEW."
  (let ((patch (make-temp-file "unified-bench-")))
    (call-process-shell-command
     (format "diff -u %s %s > %s" old new patch))
    (prog1 (measure-cpu-ms
            (lambda ()
              (with-temp-buffer
                (insert-file-contents patch)
                (diff-mode)
                (font-lock-ensure (point-min) (min (point-max) 4000)))))
      (delete-file patch))))

(defun unified-bench--round (old new hunks)
  "Return the milliseconds of the steps of one review of the files OLD and NEW.
HUNKS is what comparing them finds.  They are those of opening, showing,
dropping, bringing back, dropping the last, colouring, `diff-mode' and
Ediff; the last two are nil where these take minutes."
  (let (answer proposal)
    (cl-letf (((symbol-function 'qwen-companion-merge-compare)
               (lambda (_old _new callback)
                 (setq answer (lambda () (funcall callback hunks))))))
      (qwen-companion-proposal-on-open
       (list :id (symbol-name (gensym)) :session "s" :client "bench" :path old
             :text (with-temp-buffer (insert-file-contents new) (buffer-string))))
      (setq proposal (car (qwen-companion-proposals)))
      (qwen-companion-review--prepare proposal)
      (setf (qwen-companion-proposal-style proposal) 'unified
            (qwen-companion-proposal-state proposal) 'shown)
      (let* ((open (measure-cpu-ms
                    (lambda () (qwen-companion-review-show 'unified proposal t))))
             (show (measure-cpu-ms answer)))
        (set-buffer (qwen-companion-review-windows-control proposal))
        (let* ((difference (qwen-companion-review-unified--difference))
               (colour (measure-cpu-ms
                        (lambda ()
                          (qwen-companion-hunks-view-fontify
                           (point-min) (min (point-max) 4000)))))
               (first (measure-cpu-ms #'qwen-companion-unified-drop))
               (again (measure-cpu-ms #'qwen-companion-unified-restore))
               (hunk (car (last qwen-companion-review-unified--hunks)))
               (last (measure-cpu-ms
                      (lambda ()
                        (qwen-companion-hunks-drop difference hunk)))))
          (qwen-companion-review-hide 'unified proposal)
          (prog1
              ;; The program diff takes minutes where no line is the same, and
              ;; Ediff where there are many changes.
              (list open show first again last colour
                    (and (cdr hunks) (unified-bench--diff-mode old new))
                    (and (cdr hunks) (< (length hunks) 500)
                         (measure-cpu-ms
                          (lambda ()
                            (qwen-companion-review-show 'ediff proposal nil)
                            (qwen-companion-review-hide 'ediff proposal)))))
            (qwen-companion-proposal-end-all)))))))

(defun unified-bench--report (what lines every)
  "Measure a proposal for LINES lines, each EVERYth changed; print it as WHAT."
  (let* ((old (make-temp-file "unified-bench-" nil ".txt"))
         (new (make-temp-file "unified-bench-"))
         (hunks (unified-bench--hunks lines every)))
    (write-region (unified-bench--text lines (1+ lines)) nil old nil 0)
    (write-region (unified-bench--text lines every) nil new nil 0)
    (let* ((rounds (cl-loop repeat measure-rounds
                            collect (unified-bench--round old new hunks)))
           (medians (measure-medians
                     (mapcar (lambda (round) (mapcar (lambda (ms) (or ms 0)) round)) rounds))))
      (pcase-let ((`(,open ,show ,_first ,_again ,_last ,colour ,mode ,_ediff) medians))
        (princ (format "%-26s %s\n" what
                       (mapconcat (lambda (ms) (format "%9.1f" ms)) medians " ")))
        (when (> mode 0)
          (push (list what (+ open show colour) mode) unified-bench--compared))))
    (delete-file old)
    (delete-file new)))

(let ((qwen-companion-diff-arrival 'command)
      (qwen-companion-backend--server
       (qwen-companion-backend--make-server
        :spool (file-name-as-directory (make-temp-file "unified-bench-" t))))
      (inhibit-message t))
  (cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
    (unwind-protect
        (progn
          (princ (format "%-26s %s\n" "hunk by hunk, milliseconds"
                         (mapconcat (lambda (name) (format "%9s" name))
                                    '("open" "show" "drop" "back" "last" "colour"
                                      "diff-mode" "ediff")
                                    " ")))
          (unified-bench--report "1,000 lines, 20 changes" 1000 50)
          (unified-bench--report "20,000 lines, 400 changes" 20000 50)
          (unified-bench--report "200,000 lines, 10 changes" 200000 20000)
          (unified-bench--report "200,000 lines, 20,000 ch." 200000 10)
          (unified-bench--report "200,000 lines, all changed" 200000 1)
          (pcase-dolist (`(,what ,ours ,mode) (reverse unified-bench--compared))
            (measure-row (concat "hunk by hunk on the screen, beside diff-mode: " what)
                         (format "%.1f ms beside %.1f ms, %.2f times" ours mode (/ ours mode))
                         "1.0"))
          ;; The first three have few changes.
          (let ((sizes '(1000 20000 200000))
                (compared (reverse unified-bench--compared)))
            (measure-row "hunk by hunk: exponent of the growth with the lines, beside diff-mode"
                         (format "%.2f beside %.2f"
                                 (measure-exponent (cl-mapcar #'cons sizes (mapcar #'cadr compared)))
                                 (measure-exponent (cl-mapcar #'cons sizes (mapcar #'caddr compared))))
                         "-")))
      (qwen-companion-proposal-end-all)
      (delete-directory (qwen-companion-backend-spool) t))))

;;; unified.el ends here
