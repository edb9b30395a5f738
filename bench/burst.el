;;; burst.el --- What a branch switch costs while its files are visited  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Switches between two branches with 2,000 files, 200 of
;; them visited, with the real Python process.  Shows how long each of our
;; steps blocks Emacs at most, beside what Emacs itself needs to revert one
;; of the buffers and to look up its state of version control.  The ratio is
;; what can be compared between machines; the milliseconds are this one's.

;;; Code:

(require 'benchmark)
(require 'cl-lib)
(require 'measure)
(require 'qwen-companion)

(defconst burst-bench-files 2000 "How many files a branch has.")
(defconst burst-bench-step 10 "Each how many-th file is visited.")

(defvar burst-bench-longest nil
  "The longest run of each function: (FUNCTION COUNT MILLISECONDS).")

(defun burst-bench--milliseconds (function)
  "Return the milliseconds that FUNCTION takes of the processor.
Without those of collecting garbage, which depends on all buffers there
are, and without waiting for other programs."
  (let ((start (float-time (get-internal-run-time)))
        (collecting gc-elapsed))
    (funcall function)
    (* 1000 (max 0 (- (float-time (get-internal-run-time)) start
                      (- gc-elapsed collecting))))))

(defun burst-bench--watch (function)
  "Note how long each run of FUNCTION takes."
  (let ((entry (list function 0 0)))
    (push entry burst-bench-longest)
    (advice-add function :around
                (lambda (original &rest arguments)
                  (let (result)
                    (cl-incf (nth 1 entry))
                    (setf (nth 2 entry)
                          (max (nth 2 entry)
                               (burst-bench--milliseconds
                                (lambda ()
                                  (setq result (apply original arguments))))))
                    result)))))

(defun burst-bench--git (&rest arguments)
  "Run git with ARGUMENTS."
  (unless (eql 0 (apply #'call-process "git" nil nil nil
                        "-c" "user.name=Bench" "-c" "user.email=bench@localhost"
                        arguments))
    (error "git %S failed" arguments)))

(defun burst-bench--branch (name)
  "Make the branch NAME, on which each file is another one."
  (burst-bench--git "checkout" "-q" "-b" name)
  (dotimes (number burst-bench-files)
    (with-temp-file (format "%d.txt" number)
      (dotimes (line 100)
        (insert (format "line %d of %d%s\n" line number
                        (if (= line 50) name ""))))))
  (burst-bench--git "add" ".")
  (burst-bench--git "commit" "-q" "-m" name))

(defun burst-bench--wait (predicate)
  "Let Emacs do its work until PREDICATE returns non-nil."
  (with-timeout (60 (error "Waited in vain"))
    (while (not (funcall predicate))
      (read-event nil nil 0.01))))

(defun burst-bench-main ()
  "Measure and print."
  (let* ((default-directory (file-name-as-directory
                             (file-truename (make-temp-file "burst-bench-" t))))
         (process-environment (cons (concat "HOME=" default-directory)
                                    process-environment))
         (inhibit-message t)
         buffers)
    (unwind-protect
        (progn
          (burst-bench--git "init" "-q")
          (burst-bench--branch "one")
          (burst-bench--branch "two")
          (cl-loop for number below burst-bench-files by burst-bench-step
                   do (push (find-file-noselect (format "%d.txt" number)) buffers))
          (qwen-companion-mode 1)
          (burst-bench--wait (lambda () (eq 'ready (qwen-companion-state))))
          (burst-bench--wait #'qwen-companion-roots-published)
          (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server) '((:id "bench")))
          (qwen-companion-follow-update)
          (burst-bench--wait
           (lambda ()
             (cl-every (lambda (buffer)
                         (buffer-local-value 'qwen-companion-follow--link buffer))
                       buffers)))
          (let* ((buffer (car buffers))
                 (gc-cons-threshold most-positive-fixnum)
                 (revert (burst-bench--milliseconds
                          (lambda ()
                            (with-current-buffer buffer (revert-buffer t t)))))
                 (vc (burst-bench--milliseconds
                      (lambda ()
                        (with-current-buffer buffer (vc-refresh-state)))))
                 (switch (benchmark-elapse
                           (burst-bench--git "checkout" "-q" "one")))
                 (total
                  (progn
                    (mapc #'burst-bench--watch
                          '(qwen-companion-disk--note-event
                            qwen-companion-disk--process-events
                            qwen-companion-follow--work
                            qwen-companion-follow--answered))
                    (benchmark-elapse
                       (burst-bench--wait
                        (lambda ()
                          (cl-every (lambda (buffer)
                                      (with-current-buffer buffer
                                        (and (not (qwen-companion-follow--changed-p))
                                             (not (qwen-companion-follow--pending-p
                                                   qwen-companion-follow--link))
                                             (save-excursion
                                               (goto-char (point-min))
                                               (search-forward "one\n" nil t)))))
                                    buffers)))))))
            (princ (format "%d files, %d of them visited: switched in %.1f s, all follow %.1f s later\n"
                           burst-bench-files (length buffers) switch total))
            (measure-row
             (format "%d files change at once, %d of them visited: longest that we keep Emacs"
                     burst-bench-files (length buffers))
             (format "%.1f ms" (apply #'max (mapcar (lambda (entry) (nth 2 entry))
                                                    burst-bench-longest)))
             "50 ms")
            (princ (format "one revert-buffer %.2f ms, vc-refresh-state %.2f ms, the programs it runs not counted\n"
                           revert vc))
            (princ (format "%-34s %7s %10s %14s\n" "function" "runs" "longest" "longest/revert"))
            (pcase-dolist (`(,function ,count ,longest) burst-bench-longest)
              (princ (format "%-34s %7d %10.2f %14.2f\n" function count longest
                             (/ longest revert))))))
      (qwen-companion-mode -1)
      (mapc #'kill-buffer buffers)
      (delete-directory default-directory t))))

(burst-bench-main)

;;; burst.el ends here
